# Builds the Python package. The module kvant._engine (src/python) wraps the C++ modules of src/. The component `python`
# of `cmake --install` completes a wheel: it adds kvant._engine, the program `kvant`, and libraries that users' machines
# may lack. `pip install .` builds the package by scikit-build-core. With -DKVANT_BUILT=FOLDER, it packs the results of
# a build folder.
option(KVANT_PYTHON "Build the Python module where there are nanobind and Python's headers" ON)
option(KVANT_BUNDLE "Install the libraries that the Python module needs next to it" ON)

macro(kvant_find_python)
  # Python itself is not built with sanitizers, so it cannot load a module that is.
  if(KVANT_PYTHON AND NOT KVANT_SANITIZE)
    if(EXISTS ${CMAKE_SOURCE_DIR}/.venv/bin/python AND NOT SKBUILD)
      set(Python_EXECUTABLE ${CMAKE_SOURCE_DIR}/.venv/bin/python CACHE FILEPATH "The Python that the module is for")
    endif()
    find_package(Python 3.10 COMPONENTS Interpreter OPTIONAL_COMPONENTS Development.Module Development.SABIModule)
    if(Python_Development.Module_FOUND)
      execute_process(COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir OUTPUT_VARIABLE nanobind_place
                      OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
      find_package(nanobind CONFIG QUIET HINTS ${nanobind_place})
    endif()
    if(SKBUILD AND NOT nanobind_FOUND)
      message(FATAL_ERROR "The package needs nanobind and Python's headers (python3-dev).")
    elseif(NOT nanobind_FOUND)
      message(STATUS "No nanobind or no headers of Python: the Python module is left out.")
    endif()
  endif()
endmacro()

# kvant_python() must be called after all modules and the GPU library are defined.
function(kvant_python)
  if(nanobind_FOUND)
    file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/python/*.cc)
    nanobind_add_module(kvant_python STABLE_ABI NB_STATIC NB_SUPPRESS_WARNINGS ${sources})
    target_link_libraries(kvant_python PRIVATE kvant_task nlohmann_json::nlohmann_json)
    if(NOT APPLE)
      target_link_options(kvant_python PRIVATE -Wl,--exclude-libs,ALL)
    endif()
    set_target_properties(kvant_python PROPERTIES OUTPUT_NAME _engine INSTALL_RPATH "\$ORIGIN/lib")
    kvant_unity(kvant_python)
    foreach(library nanobind-static nanobind-static-abi3)
      if(TARGET ${library})
        kvant_unity(${library})
      endif()
    endforeach()
    install(TARGETS kvant_python DESTINATION kvant COMPONENT python EXCLUDE_FROM_ALL)
    install(TARGETS kvant DESTINATION kvant/bin COMPONENT python EXCLUDE_FROM_ALL)
    if(KVANT_BUNDLE)
      kvant_install_needed(kvant/lib python MODULES $<TARGET_FILE:kvant_python> LIBRARIES $<TARGET_FILE:kvant_cpu> EXECUTABLES $<TARGET_FILE:kvant>)
    endif()
    kvant_install_licences()
    kvant_install_in_wheel(kvant_cpu)
    set(targets kvant_python kvant kvant_cpu)
    if(TARGET kvant_cuda)
      kvant_install_in_wheel(kvant_cuda)
      # Models with device="cuda" need ggml's CUDA backend, which exists only if scripts/setup.sh has built it.
      foreach(packages IN LISTS KVANT_VENV_PACKAGES)
        install(FILES ${packages}/lib/libggml-cuda.so DESTINATION kvant/lib COMPONENT python EXCLUDE_FROM_ALL OPTIONAL)
      endforeach()
      list(APPEND targets kvant_cuda)
    endif()
    add_custom_target(python_package DEPENDS ${targets})
  endif()
  if(Python3_Interpreter_FOUND)
    add_test(NAME Python.Package COMMAND ${Python3_EXECUTABLE} -m unittest discover -v -s python/tests
             WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(Python.Package PROPERTIES LABELS unit ENVIRONMENT PYTHONPATH=${CMAKE_SOURCE_DIR}/python)
  endif()
  if(nanobind_FOUND)
    add_test(NAME Python.Wheel
             COMMAND ${Python_EXECUTABLE} ${CMAKE_SOURCE_DIR}/python/tests_wheel/wheel_test.py ${CMAKE_BINARY_DIR}
                     $<TARGET_FILE:kvant> ${CMAKE_SOURCE_DIR}/.venv/smollm2-135m-instruct.gguf)
    set_tests_properties(Python.Wheel PROPERTIES LABELS model)
  endif()
endfunction()

# Installs the licences of what the package contains in addition to kvant.
function(kvant_install_licences)
  foreach(licence llama.cpp:${CMAKE_SOURCE_DIR}/.venv/include/llama-chat/LICENSE
                  cpp-httplib:${CMAKE_SOURCE_DIR}/.venv/include/cpp-httplib/LICENSE
                  nanobind:${nanobind_DIR}/../../nanobind-${nanobind_VERSION}.dist-info/licenses/LICENSE
                  fmt:/usr/share/doc/libfmt-dev/copyright CLI11:/usr/share/doc/libcli11-dev/copyright json:/usr/share/doc/nlohmann-json3-dev/copyright
                  gcc:/usr/share/doc/libgomp1/copyright)
    string(REGEX MATCH "^([^:]*):(.*)$" _ ${licence})
    install(FILES ${CMAKE_MATCH_2} DESTINATION kvant/licences RENAME ${CMAKE_MATCH_1}.txt COMPONENT python EXCLUDE_FROM_ALL
            OPTIONAL)
  endforeach()
endfunction()
