# Builds cpp-httplib, which `kvant serve` uses for HTTP. llama.cpp ships this copy, and `make setup` puts the copy next
# to llama.cpp's libraries. Without TLS and compression, cpp-httplib needs no other library.
find_path(KVANT_HTTPLIB httplib.cpp PATHS ${CMAKE_SOURCE_DIR}/.venv/include/cpp-httplib NO_DEFAULT_PATH)
if(NOT KVANT_HTTPLIB)
  message(FATAL_ERROR "cpp-httplib is missing in .venv/include: run `make setup`")
endif()
add_library(cpp_httplib STATIC ${KVANT_HTTPLIB}/httplib.cpp)
target_include_directories(cpp_httplib SYSTEM PUBLIC ${KVANT_HTTPLIB})
# HttpConnection limits the head of a request as a whole, so a single field may be as long as the whole head.
target_compile_definitions(cpp_httplib PUBLIC CPPHTTPLIB_LISTEN_BACKLOG=512 CPPHTTPLIB_HEADER_MAX_LENGTH=65536
                                              CPPHTTPLIB_MAX_LINE_LENGTH=65536)
target_compile_options(cpp_httplib PRIVATE -w $<$<CONFIG:Release>:-O1;-g0>)
target_link_libraries(cpp_httplib PUBLIC Threads::Threads)
