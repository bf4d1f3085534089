# Makes one CTest test per suite of a test program, so the suite's shared data is made once. The file has two uses.
#
# When included, it defines kvant_test_suites(PROGRAM LABEL), which asks the built program for its suites. Suites whose
# names end in OnTheModel need the default model, and get the labels `model` and `slow` instead of LABEL.
#
# When run by `cmake -P` with PROGRAM, LABEL and LIST, it writes the list of tests to LIST. EMULATOR is a command that
# runs programs for a different processor, or empty.
if(CMAKE_SCRIPT_MODE_FILE)
  cmake_policy(VERSION 3.25)
  execute_process(COMMAND ${EMULATOR} ${PROGRAM} --gtest_list_tests OUTPUT_VARIABLE lines COMMAND_ERROR_IS_FATAL ANY)
  # Removes the values of parameters.
  string(REGEX REPLACE "#[^\n]*" "" lines "${lines}")
  string(REGEX MATCHALL "[^\n]+" lines "${lines}")
  set(tests "")
  list(JOIN EMULATOR " " emulator)
  set(seconds 600)
  if(EMULATOR)
    set(seconds 1800)
  endif()
  foreach(line IN LISTS lines)
    string(STRIP "${line}" suite)
    if(line MATCHES "^ " OR NOT suite MATCHES "^[A-Za-z0-9_/]+\\.$")
      continue()
    endif()
    string(REGEX REPLACE "\\.$" "" suite "${suite}")
    set(label ${LABEL})
    if(suite MATCHES "OnTheModel$")
      set(label model)
    endif()
    string(APPEND tests "add_test([=[${suite}]=] ${emulator} ${PROGRAM} [=[--gtest_filter=${suite}.*]=] --gtest_brief=0)\n"
           "set_tests_properties([=[${suite}]=] PROPERTIES LABELS ${label} TIMEOUT ${seconds})\n")
  endforeach()
  if(tests STREQUAL "")
    message(FATAL_ERROR "${PROGRAM} lists no tests")
  endif()
  file(WRITE ${LIST} "${tests}")
  return()
endif()

set(KVANT_LIST_SUITES ${CMAKE_CURRENT_LIST_FILE})
# Builds the programs of `make check`.
add_custom_target(unit_tests)

function(kvant_test_suites program label)
  set(list ${CMAKE_BINARY_DIR}/suites/${program}.cmake)
  add_custom_command(TARGET ${program} POST_BUILD BYPRODUCTS ${list} VERBATIM
                     COMMAND ${CMAKE_COMMAND} -DPROGRAM=$<TARGET_FILE:${program}> -DLABEL=${label} -DLIST=${list}
                             "-DEMULATOR=${CMAKE_CROSSCOMPILING_EMULATOR}" -P ${KVANT_LIST_SUITES})
  set(include ${CMAKE_BINARY_DIR}/suites/${program}_include.cmake)
  file(CONFIGURE OUTPUT ${include} @ONLY CONTENT
"if(EXISTS \"@list@\")
  include(\"@list@\")
else()
  add_test(@program@_is_not_built @program@_is_not_built)
  set_tests_properties(@program@_is_not_built PROPERTIES LABELS @label@)
endif()
")
  set_property(DIRECTORY ${CMAKE_SOURCE_DIR} APPEND PROPERTY TEST_INCLUDE_FILES ${include})
endfunction()
