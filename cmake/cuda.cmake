# The GPU library: libkvant_cuda, its tests and its benchmark. Without a CUDA compiler everything else is built.
# scripts/setup.sh test puts a compiler into .venv.
option(KVANT_CUDA "Build the GPU library where there is nvcc" ON)
set(KVANT_CUDA_ARCHITECTURES 90a CACHE STRING "What the GPU code is compiled for")
if(KVANT_CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    unset(CMAKE_CUDA_COMPILER CACHE)  # there may be one by now
    find_program(KVANT_NVCC nvcc HINTS /usr/local/cuda/bin ${KVANT_VENV_PACKAGES}/nvidia/cu13/bin)
    if(KVANT_NVCC AND NOT DEFINED ENV{CUDACXX})
      set(CMAKE_CUDA_COMPILER ${KVANT_NVCC} CACHE FILEPATH "nvcc")
    endif()
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_ARCHITECTURES ${KVANT_CUDA_ARCHITECTURES})
    enable_language(CUDA)
    set(CMAKE_CUDA_STANDARD 20)
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that new versions of nvcc can
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    endif()
    set(CMAKE_POSITION_INDEPENDENT_CODE ON)  # the rooms become part of a shared library
  else()
    message(STATUS "No nvcc found (set CUDACXX): the GPU library is left out.")
  endif()
endif()

# After the rooms.
function(kvant_cuda)
  if(NOT CMAKE_CUDA_COMPILER)
    return()
  endif()
  set(room ${CMAKE_SOURCE_DIR}/src/attention/cuda)
  file(GLOB kernels CONFIGURE_DEPENDS ${room}/kernels/*.cu ${room}/*_api.cu)
  add_library(kvant_cuda SHARED ${kernels} ${room}/page_permutation.cc)
  target_include_directories(kvant_cuda PUBLIC ${CMAKE_SOURCE_DIR}/include PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_compile_options(kvant_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-O3 -lineinfo>)
  target_link_libraries(kvant_cuda PRIVATE kvant_format)
  install(TARGETS kvant_cuda)
  install(DIRECTORY include/kvant DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

  file(GLOB tests CONFIGURE_DEPENDS ${room}/*_test.cu)
  add_executable(cuda_test ${tests} ${room}/page_permutation.cc)
  target_link_libraries(cuda_test PRIVATE kvant_cuda kvant_format GTest::gtest GTest::gtest_main)
  gtest_discover_tests(cuda_test TEST_FILTER "DecodeApi.*" DISCOVERY_TIMEOUT 60)
  add_test(NAME OnTheGpu COMMAND cuda_test --gtest_filter=-DecodeApi.*)  # a line where there is no GPU, not hundreds
  set_tests_properties(OnTheGpu PROPERTIES SKIP_REGULAR_EXPRESSION "no GPU" TIMEOUT 600)

  add_executable(decode_bench ${room}/decode_bench.cu ${room}/page_permutation.cc)
  target_link_libraries(decode_bench PRIVATE kvant_cuda kvant_format)
  add_executable(unit_rates ${room}/unit_rates.cu)
  foreach(program cuda_test decode_bench unit_rates)
    target_include_directories(${program} PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
  endforeach()
  # What runs on a machine with a GPU may have been built on one without.
  set_target_properties(cuda_test decode_bench PROPERTIES BUILD_RPATH_USE_ORIGIN ON BUILD_RPATH "\$ORIGIN")
endfunction()
