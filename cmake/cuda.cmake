# The GPU library: libkvant_cuda, its tests and its benchmark. Without a CUDA compiler everything else is built.
# scripts/setup.sh test puts a compiler into .venv.
option(KVANT_CUDA "Build the GPU library where there is nvcc" ON)
# 90a: Hopper. 80-virtual: PTX that the driver compiles for any other GPU from compute capability 8.0 on.
set(KVANT_CUDA_ARCHITECTURES 80-virtual 90a-real CACHE STRING "What the GPU code is compiled for")
option(KVANT_CUDA_UNOPTIMIZED "Leave out most of the GPU code's optimization: where nothing runs it" OFF)
set(KVANT_CUDA_SHARED_LIMIT "" CACHE STRING "Take no more shared memory of a CTA than so many bytes, as on a smaller GPU; for tests")
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
    set(KVANT_CUDA_OPTIONS -O3 -lineinfo)
    if(KVANT_CUDA_UNOPTIMIZED)
      include(CheckCompilerFlag)
      check_compiler_flag(CUDA --Ofast-compile=max KVANT_NVCC_COMPILES_FAST)  # nvcc 12.9 and newer
      if(KVANT_NVCC_COMPILES_FAST)
        string(APPEND CMAKE_CUDA_FLAGS " --Ofast-compile=max")  # of tests and benchmarks, too
        set(CMAKE_CUDA_FLAGS_RELEASE "-O1 -DNDEBUG")  # of the host's code
        set(KVANT_CUDA_OPTIONS "")
        message(STATUS "GPU code without optimization (KVANT_CUDA_UNOPTIMIZED): to see that it compiles")
      endif()
    endif()
  else()
    if(SKBUILD)
      message(FATAL_ERROR "KVANT_CUDA is ON, but no nvcc was found: set CUDACXX, or leave the GPU library out of the package.")
    endif()
    message(STATUS "No nvcc found (set CUDACXX): the GPU library is left out.")
  endif()
endif()

# Sources in one that includes them, where parsing is nearly all that is done with them: without optimization. With it,
# several cores have more of them to do at once. They are to have no name in common that means two things.
function(kvant_cuda_together name sources)
  set(together ${ARGN})
  if(KVANT_CUDA_UNOPTIMIZED AND KVANT_UNITY)
    list(TRANSFORM together REPLACE "(.+)" "#include \"\\1\"")
    list(JOIN together "\n" together)
    file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/cuda/${name}.cu @ONLY CONTENT "${together}\n")
    set(together ${CMAKE_BINARY_DIR}/cuda/${name}.cu)
  endif()
  set(${sources} ${${sources}} ${together} PARENT_SCOPE)
endfunction()

# The library for others' programs: `cmake --install`, then find_package(kvant_cuda) and kvant::kvant_cuda, or pkg-config.
function(kvant_install_cuda)
  file(STRINGS ${CMAKE_SOURCE_DIR}/include/kvant/kvant.h line REGEX "^#define KVANT_VERSION [0-9]+$")
  string(REGEX MATCH "[0-9]+$" number "${line}")
  math(EXPR major "${number} / 1000")
  math(EXPR minor "${number} % 1000")
  set(version ${major}.${minor})
  set(package ${CMAKE_INSTALL_LIBDIR}/cmake/kvant_cuda)
  set_target_properties(kvant_cuda PROPERTIES VERSION ${version} SOVERSION ${major})
  install(TARGETS kvant_cuda EXPORT kvant_cuda INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(DIRECTORY include/kvant DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(EXPORT kvant_cuda FILE kvant_cudaConfig.cmake NAMESPACE kvant:: DESTINATION ${package})
  include(CMakePackageConfigHelpers)
  write_basic_package_version_file(kvant_cudaConfigVersion.cmake VERSION ${version} COMPATIBILITY SameMajorVersion)
  file(RELATIVE_PATH prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)  # wherever it is moved to
  file(CONFIGURE OUTPUT kvant_cuda.pc @ONLY CONTENT [[prefix=${pcfiledir}/@prefix@
Name: kvant_cuda
Description: attention on a paged low-bit KV cache, on NVIDIA GPUs
Version: @version@
Cflags: -I${prefix}/@CMAKE_INSTALL_INCLUDEDIR@
Libs: -L${prefix}/@CMAKE_INSTALL_LIBDIR@ -lkvant_cuda
]])
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/kvant_cudaConfigVersion.cmake DESTINATION ${package})
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/kvant_cuda.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
  install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/kvant_cuda)
endfunction()

# After the rooms.
function(kvant_cuda)
  if(NOT CMAKE_CUDA_COMPILER)
    return()
  endif()
  set(room ${CMAKE_SOURCE_DIR}/src/device/cuda)
  file(GLOB decoding CONFIGURE_DEPENDS ${room}/kernels/*.cu)
  set(sealing ${decoding})
  list(FILTER decoding EXCLUDE REGEX "/seal_")
  list(FILTER sealing INCLUDE REGEX "/seal_")
  list(REMOVE_ITEM sealing ${room}/kernels/seal_vectors.cu)  # whose shared memory is aligned in another way
  file(GLOB prompts CONFIGURE_DEPENDS ${room}/prompt/tiles_*.cu ${room}/prompt/mma_*.cu)
  file(GLOB api CONFIGURE_DEPENDS ${room}/api/*_api.cu)
  list(REMOVE_ITEM api ${room}/api/prompt_api.cu)  # whose names others have, too
  set(kernels ${room}/kernels/seal_vectors.cu ${room}/api/prompt_api.cu)
  kvant_cuda_together(decoding kernels ${decoding})
  kvant_cuda_together(sealing kernels ${sealing})
  kvant_cuda_together(prompts kernels ${prompts})
  kvant_cuda_together(api kernels ${api})
  file(GLOB of_hopper CONFIGURE_DEPENDS ${room}/prompt/kernel_*.cu)
  kvant_cuda_together(hopper hopper ${of_hopper})
  # Clusters and wgmma: code for Hopper alone, be it PTX that nothing runs.
  set(hopper_architectures ${CMAKE_CUDA_ARCHITECTURES})
  list(FILTER hopper_architectures INCLUDE REGEX "^90a")
  if(NOT hopper_architectures)
    set(hopper_architectures 90a-virtual)
  endif()
  add_library(kvant_cuda_hopper OBJECT ${hopper})
  set_target_properties(kvant_cuda_hopper PROPERTIES CUDA_ARCHITECTURES "${hopper_architectures}" POSITION_INDEPENDENT_CODE ON)
  target_include_directories(kvant_cuda_hopper PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
  target_compile_options(kvant_cuda_hopper PRIVATE ${KVANT_CUDA_OPTIONS})
  add_library(kvant_cuda SHARED ${kernels} $<TARGET_OBJECTS:kvant_cuda_hopper>)
  if(KVANT_CUDA_SHARED_LIMIT)
    target_compile_definitions(kvant_cuda PRIVATE KVANT_CUDA_SHARED_LIMIT=${KVANT_CUDA_SHARED_LIMIT})
  endif()
  # Where the library is not compiled for other GPUs, a few of its files tell whether it would be: the assembler takes
  # what sm_80 has and no more.
  if(NOT "${CMAKE_CUDA_ARCHITECTURES}" MATCHES "(^|;)80")
    set(of_80 ${room}/kernels/seal_vectors.cu ${room}/api/encode_api.cu)
    kvant_cuda_together(decoding_80 of_80 ${room}/kernels/linear.cu ${room}/kernels/skipping.cu)
    kvant_cuda_together(prompts_80 of_80 ${room}/prompt/mma_d128.cu ${room}/prompt/mma_integers_d128.cu
      ${room}/prompt/tiles_integers_d128.cu)
    add_library(kvant_cuda_80 OBJECT ${of_80})
    set_target_properties(kvant_cuda_80 PROPERTIES CUDA_ARCHITECTURES 80-real)
    target_include_directories(kvant_cuda_80 PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
  endif()
  target_include_directories(kvant_cuda PUBLIC $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include> PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_compile_options(kvant_cuda PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:${KVANT_CUDA_OPTIONS}>")
  target_link_libraries(kvant_cuda PRIVATE kvant_cuda_pages)
  set_target_properties(kvant_cuda PROPERTIES INSTALL_RPATH "\$ORIGIN")  # in the Python package, what it needs is beside it
  kvant_install_cuda()

  file(GLOB tests CONFIGURE_DEPENDS ${room}/*/*_test.cu)
  # What tests compare steps with knows lengths from the cache's ledger.
  add_executable(cuda_test ${tests} ${room}/test/kernel_path.cu ${CMAKE_SOURCE_DIR}/src/cache/page_ledger.cc
    ${CMAKE_SOURCE_DIR}/src/cache/schedule.cc)
  target_link_libraries(cuda_test PRIVATE kvant_cuda kvant_cuda_pages)
  kvant_embed_bytes(cuda_test data/captured/smollm2-135m-layer-12.bf16 kCapturedHeads)
  kvant_test_program(cuda_test gpu)
  # Tests without kernels of their own are C++, for which nvcc would take four times as long.
  foreach(test IN LISTS tests)
    file(STRINGS ${test} kernels_of_test REGEX "__global__" LIMIT_COUNT 1)
    if(NOT kernels_of_test)
      set_source_files_properties(${test} PROPERTIES LANGUAGE CXX)
    endif()
  endforeach()
  target_include_directories(cuda_test SYSTEM PRIVATE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
  kvant_precompile(cuda_test kvant_test_headers)
  kvant_unity(cuda_test)

  add_executable(caller_1_0 ${room}/abi/caller_1_0.c)
  target_link_libraries(caller_1_0 PRIVATE kvant_cuda)
  add_test(NAME CudaApi.CallerOf1_0 COMMAND caller_1_0)
  set_tests_properties(CudaApi.CallerOf1_0 PROPERTIES LABELS gpu TIMEOUT 60)
  add_test(NAME CudaApi.InstalledLibrary COMMAND ${room}/abi/installed_library_test.sh ${CMAKE_BINARY_DIR})
  set_tests_properties(CudaApi.InstalledLibrary PROPERTIES LABELS gpu TIMEOUT 60 RESOURCE_LOCK installation)

  foreach(bench decode_bench prompt_bench seal_bench)
    add_executable(${bench} ${room}/bench/${bench}.cu)
    target_link_libraries(${bench} PRIVATE kvant_cuda kvant_cuda_pages)
  endforeach()
  add_executable(unit_rates ${room}/bench/unit_rates.cu)  # of Hopper's units
  set_target_properties(unit_rates PROPERTIES CUDA_ARCHITECTURES "${hopper_architectures}")
  foreach(program cuda_test decode_bench prompt_bench seal_bench unit_rates)
    target_include_directories(${program} PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
  endforeach()
  # What runs on a machine with a GPU may have been built on one without.
  set_target_properties(cuda_test caller_1_0 decode_bench prompt_bench seal_bench PROPERTIES BUILD_RPATH_USE_ORIGIN ON BUILD_RPATH "\$ORIGIN")
endfunction()
