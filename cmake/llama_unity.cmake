# scripts/setup.sh includes this in llama.cpp's own build. It compiles the core of libllama a dozen sources at a time,
# as llama.cpp's CMakeLists.txt does with the graphs of models. That takes half of the time; options stay the same.
# Two sources have a function of the same name.
file(GLOB core CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/src/*.cpp)
list(FILTER core EXCLUDE REGEX "llama-kv-cache-dsv4\\.cpp$")
cmake_language(DEFER CALL set_source_files_properties ${core} DIRECTORY src
               PROPERTIES SKIP_UNITY_BUILD_INCLUSION OFF)
