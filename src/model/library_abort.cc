#include "model/library_abort.h"

#include <ggml.h>

#include <mutex>
#include <stdexcept>

namespace kvant {
namespace {

std::mutex one_at_a_time;  // ggml has one abort callback for the whole process

// ggml calls this function before it aborts the process. The exception leaves ggml before that.
[[noreturn]] void throw_message(const char* message) {
  throw std::runtime_error(message);
}

}  // namespace

std::optional<std::string> catch_library_abort(const std::function<void()>& body) {
  const std::lock_guard lock(one_at_a_time);
  const ggml_abort_callback_t before = ggml_set_abort_callback(throw_message);
  std::optional<std::string> failure;
  try {
    body();
  } catch (const std::exception& e) {
    failure = e.what();
  }
  ggml_set_abort_callback(before);
  return failure;
}

}  // namespace kvant
