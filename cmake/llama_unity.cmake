# Makes llama.cpp's build compile the core of libllama a dozen sources at a time. scripts/setup.sh includes this file in
# llama.cpp's build. llama.cpp's own CMakeLists.txt already compiles the graphs of models together. The build takes half
# of the time, with unchanged options. llama-kv-cache-dsv4.cpp compiles alone, because another source has a function of
# the same name.
file(GLOB core CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/src/*.cpp)
list(FILTER core EXCLUDE REGEX "llama-kv-cache-dsv4\\.cpp$")
cmake_language(DEFER CALL set_source_files_properties ${core} DIRECTORY src
               PROPERTIES SKIP_UNITY_BUILD_INCLUSION OFF)
