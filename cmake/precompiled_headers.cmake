# Parses the headers that most sources include only once: one set for modules, and one with GoogleTest for tests. Each
# source still includes all headers that it uses, and `make lint` compiles without precompiled headers. Files for other
# instruction sets cannot use these headers, and set SKIP_PRECOMPILE_HEADERS.

if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # ccache needs -fpch-preprocess.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
endif()

# kvant_precompile(TARGET HEADERS): compiles TARGET with the headers of the library HEADERS.
function(kvant_precompile target headers)
  target_precompile_headers(${target} REUSE_FROM ${headers})
endfunction()

function(kvant_header_library name)
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/headers/${name}.cc CONTENT "// Nothing: its headers are wanted.\n")
  add_library(${name} OBJECT EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/headers/${name}.cc)
  target_link_libraries(${name} PRIVATE fmt::fmt)
endfunction()

set(KVANT_STANDARD_HEADERS <algorithm> <cmath> <cstdint> <cstring> <fmt/format.h> <functional> <map> <memory> <span>
                           <string> <string_view> <utility> <vector>)

kvant_header_library(kvant_room_headers)
target_precompile_headers(kvant_room_headers PRIVATE ${KVANT_STANDARD_HEADERS})

# kvant_test_headers are compiled like the code of programs, with -fPIE instead of -fPIC where both exist, and with the
# optimization of tests.
kvant_header_library(kvant_test_headers)
target_link_libraries(kvant_test_headers PRIVATE GTest::gtest)
target_compile_options(kvant_test_headers PRIVATE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1>)
target_precompile_headers(kvant_test_headers PRIVATE <gtest/gtest.h> <random> ${KVANT_STANDARD_HEADERS})
if(CMAKE_POSITION_INDEPENDENT_CODE AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  set_target_properties(kvant_test_headers PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(kvant_test_headers PRIVATE -fPIE)
endif()
