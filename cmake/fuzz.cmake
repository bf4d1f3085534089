# Builds the fuzz targets for libFuzzer: each src/<module>/<x>_fuzz.cc becomes a program <x>_fuzz. Only clang has
# libFuzzer:
#
#   CC=clang CXX=clang++ cmake --preset default -B build/fuzz -DKVANT_FUZZ=ON -DKVANT_CUDA=OFF -DKVANT_KERNELS=here
#   cmake --build build/fuzz --target recipe_parser_fuzz
#   mkdir -p build/fuzz/corpus
#   build/fuzz/recipe_parser_fuzz -max_total_time=120 -dict=fuzz/recipe.dict build/fuzz/corpus fuzz/seeds/recipe
#
# The other targets run likewise: json_reader_fuzz (fuzz/seeds/json), session_file_fuzz (fuzz/seeds/session),
# sequence_image_fuzz (fuzz/seeds/sequence), api_request_fuzz (fuzz/seeds/api, fuzz/api.dict) and comparison_fuzz
# (fuzz/seeds/results, fuzz/results.dict). Include this file before the modules are defined, because it adds the
# instrumentation to them.
option(KVANT_FUZZ "Build the fuzz targets (needs clang with libFuzzer)" OFF)

function(kvant_fuzz_targets)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/*/*_fuzz.cc)
  foreach(source IN LISTS sources)
    get_filename_component(name ${source} NAME_WE)
    get_filename_component(folder ${source} DIRECTORY)
    get_filename_component(room ${folder} NAME)
    add_executable(${name} ${source} ${CMAKE_SOURCE_DIR}/fuzz/sanitizer_options.cc)
    target_link_libraries(${name} PRIVATE kvant_${room} ${KVANT_GGML})
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  endforeach()
endfunction()

if(KVANT_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "KVANT_FUZZ needs clang: configure with CC=clang CXX=clang++")
  endif()
  # -fno-sanitize-coverage=trace-cmp leaves out the coverage of comparisons, which takes a third of the time. Seeds and
  # dictionaries contain the words that this coverage would find.
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
                      -fno-sanitize-coverage=trace-cmp -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
  cmake_language(DEFER CALL kvant_fuzz_targets)
endif()
