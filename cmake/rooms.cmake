# Defines the modules of src/, which the functions call rooms. A module is a folder: its sources form a static library,
# and its x_test.cc files form one test program.
include(cmake/test_suites.cmake)
include(cmake/precompiled_headers.cmake)

# Tests are compiled with less optimization than the code that they test, because most tests run only once, for a
# second.
function(kvant_test_program name label)
  target_link_libraries(${name} PRIVATE GTest::gtest GTest::gtest_main)
  target_compile_options(${name} PRIVATE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1>)
  if(CMAKE_CROSSCOMPILING_EMULATOR)
    target_compile_definitions(${name} PRIVATE KVANT_EMULATED)  # src/base/testing/emulation.h
  endif()
  kvant_test_suites(${name} ${label})
endfunction()

# Sources are compiled a dozen at a time, because parsing headers and instantiating templates takes most of the time of
# most files. Names in unnamed namespaces must therefore be unique within a module. The sources of a SEPARATE module
# compile alone and may repeat names, but its tests do not. A test with a name that other tests also use lies in its own
# namespace. -DKVANT_UNITY=OFF compiles every file alone.
option(KVANT_UNITY "Compile a dozen sources at a time" ON)
function(kvant_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${KVANT_UNITY} UNITY_BUILD_BATCH_SIZE 12)
  if(KVANT_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # GCC takes an included source for a header.
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  endif()
endfunction()

# kvant_room(NAME [SEPARATE] [FOLDER folder of src/, where it is not NAME] [EXCEPT a folder that is another room]
#            [PUBLIC libraries...] [PRIVATE libraries...])
function(kvant_room name)
  cmake_parse_arguments(ROOM "SEPARATE" "FOLDER;EXCEPT" "PUBLIC;PRIVATE" ${ARGN})
  if(NOT ROOM_FOLDER)
    set(ROOM_FOLDER ${name})
  endif()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS src/${ROOM_FOLDER}/*.cc)
  if(ROOM_EXCEPT)
    list(FILTER sources EXCLUDE REGEX "/src/${ROOM_EXCEPT}/")
  endif()
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_(test|fuzz)\\.cc$|/testing/")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  if(sources)
    add_library(kvant_${name} STATIC ${sources})
    target_include_directories(kvant_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src)
    target_link_libraries(kvant_${name} PUBLIC ${ROOM_PUBLIC} PRIVATE ${ROOM_PRIVATE})
    kvant_precompile(kvant_${name} kvant_room_headers)
    if(NOT ROOM_SEPARATE)
      kvant_unity(kvant_${name})
    endif()
  else()
    add_library(kvant_${name} INTERFACE)
    target_link_libraries(kvant_${name} INTERFACE ${ROOM_PUBLIC})
  endif()
  if(tests)
    add_executable(${name}_test ${tests})
    target_link_libraries(${name}_test PRIVATE kvant_${name} ${ROOM_PRIVATE})
    kvant_test_program(${name}_test unit)
    kvant_precompile(${name}_test kvant_test_headers)
    kvant_unity(${name}_test)
    if(TARGET kvant_cpu_device)
      target_link_libraries(${name}_test PRIVATE kvant_cpu_device)
    endif()
    add_dependencies(unit_tests ${name}_test)
  endif()
endfunction()

# kvant_program(NAME ROOM libraries...) defines an executable of the module's sources. The module's x_test.cc files run
# this program, whose path is KVANT_PROGRAM.
function(kvant_program name room)
  file(GLOB sources CONFIGURE_DEPENDS src/${room}/*.cc)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  if(sources)
    add_executable(${name} ${sources})
    target_link_libraries(${name} PRIVATE ${ARGN})
    # Commands only read options and write figures. The code that takes time lies in other modules, with full
    # optimization.
    target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
    target_precompile_headers(${name} PRIVATE <CLI/CLI.hpp> <nlohmann/json.hpp> <fmt/format.h> <functional> <map>
                              <memory> <string> <vector>)
    kvant_unity(${name})
  endif()
  if(tests)
    add_executable(${room}_test ${tests})
    add_dependencies(${room}_test ${name})
    target_compile_definitions(${room}_test PRIVATE KVANT_PROGRAM="$<TARGET_FILE:${name}>")
    target_link_libraries(${room}_test PRIVATE ${ARGN} ${KVANT_GGML})
    kvant_test_program(${room}_test slow)
    kvant_precompile(${room}_test kvant_test_headers)
    kvant_unity(${room}_test)
  endif()
endfunction()
