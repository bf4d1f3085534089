# The GPU library's functions on the host's memory, for tests of what lies above it. Tests of devices spend much of their time
# in it, so it is optimized as what they test is.
file(GLOB host_library CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/cache/testing/*.cc)
add_library(kvant_host_library STATIC EXCLUDE_FROM_ALL ${host_library})
target_link_libraries(kvant_host_library PUBLIC kvant_cache)
kvant_precompile(kvant_host_library kvant_room_headers)
kvant_unity(kvant_host_library)
target_link_libraries(cache_test PRIVATE kvant_host_library)  # of rooms below the cache none needs it
