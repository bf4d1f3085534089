# Builds llama.cpp's support for chats: chat templates with tools, JSON schemas as grammars, and parsers of completions
# with tool calls. The sources are a part of llama.cpp's `common` library, which `make setup` puts next to llama.cpp's
# libraries. src/llama_chat/common_parts.cc replaces what these sources need of the rest of `common`.
find_path(KVANT_LLAMA_CHAT chat.cpp PATHS ${CMAKE_SOURCE_DIR}/.venv/include/llama-chat NO_DEFAULT_PATH)
if(NOT KVANT_LLAMA_CHAT)
  message(FATAL_ERROR "llama.cpp's sources for chats are missing in .venv/include: run `make setup`")
endif()
file(GLOB parsers ${KVANT_LLAMA_CHAT}/parsers/*.cpp)
set(sources
    # The order of the sources lets them compile as one: declarations come before templates that use them.
    jinja/value.cpp jinja/caps.cpp jinja/lexer.cpp jinja/parser.cpp jinja/runtime.cpp jinja/string.cpp
    chat-auto-parser-helpers.cpp chat-auto-parser-generator.cpp chat-diff-analyzer.cpp chat.cpp peg-parser.cpp
    chat-peg-parser.cpp json-schema.cpp json-schema-to-grammar.cpp trie.cpp unicode.cpp json.cpp)
list(TRANSFORM sources PREPEND ${KVANT_LLAMA_CHAT}/)
set(own ${CMAKE_SOURCE_DIR}/src/llama_chat/common_parts.cc)
add_library(llama_chat STATIC ${sources} ${parsers} ${own})
kvant_unity(llama_chat)
set_target_properties(llama_chat PROPERTIES UNITY_BUILD_BATCH_SIZE 18)
# Names in json.cpp and in kvant's own source clash with names in other sources.
set_source_files_properties(${KVANT_LLAMA_CHAT}/json.cpp ${own} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
target_include_directories(llama_chat SYSTEM PUBLIC ${KVANT_LLAMA_CHAT})
target_compile_options(llama_chat PRIVATE -w $<$<CONFIG:Release>:-O1;-g0>
                       "SHELL:-include ${CMAKE_SOURCE_DIR}/src/llama_chat/local_time.h")
target_link_libraries(llama_chat PUBLIC llama ggml::ggml-base PRIVATE nlohmann_json::nlohmann_json)
