# Adds compiler checks. KVANT_SANITIZE=address finds wrong memory accesses and undefined behaviour,
# KVANT_SANITIZE=thread finds data races. GCC's thread checks do not know std::atomic_thread_fence, so -Wtsan refuses
# the fence in code with thread checks.
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
  # With the sanitizers' instrumentation, GCC 12 believes that parts of std::regex are uninitialized.
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    add_compile_options(-Wno-maybe-uninitialized)
  endif()
endif()
