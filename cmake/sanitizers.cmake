# KVANT_SANITIZE=address finds wrong accesses and undefined behaviour, KVANT_SANITIZE=thread data races. GCC's checks of
# threads don't know std::atomic_thread_fence, which is therefore refused in what is compiled with them (-Wtsan).
if(KVANT_SANITIZE STREQUAL "address")
  set(sanitizers -fsanitize=address,undefined)
  add_compile_options(-fno-sanitize-recover=undefined)
elseif(KVANT_SANITIZE STREQUAL "thread")
  set(sanitizers -fsanitize=thread)
elseif(KVANT_SANITIZE)
  message(FATAL_ERROR "KVANT_SANITIZE is '${KVANT_SANITIZE}': it may be 'address' or 'thread'")
endif()
if(KVANT_SANITIZE)
  add_compile_options(${sanitizers} -fno-omit-frame-pointer)
  add_link_options(${sanitizers})
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)  # with their code in between, GCC 12 takes parts of std::regex for uninitialized
    add_compile_options(-Wno-maybe-uninitialized)
  endif()
endif()
