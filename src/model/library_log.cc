#include "model/library_log.h"

#include <llama.h>

#include <mutex>

namespace kvant {

void quiet_library_log() {
  static std::once_flag once;
  std::call_once(once, [] { llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr); });
}

}  // namespace kvant
