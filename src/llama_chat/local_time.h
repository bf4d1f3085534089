// llama.cpp's sources for chats write dates with std::localtime(), whose result belongs to the whole process.
// The server fills chat templates on many threads, so one thread could read the time that another thread was
// writing. The compiler includes this file before each of these sources (cmake/llama_chat.cmake), which then
// get a result that belongs to the calling thread.
#pragma once

#include <ctime>
#include <memory>

namespace kvant {

inline std::tm& local_time_of_thread(const std::time_t* time) {
  thread_local std::tm result;
  localtime_r(time, &result);
  return result;
}

}  // namespace kvant

// The sources call std::localtime(), so the replacement must be a name in std.
#define localtime(time) addressof(::kvant::local_time_of_thread(time))
