#include "model/library_log.h"

#include <ggml.h>
#include <llama.h>

#include <cstdio>
#include <mutex>

namespace kvant {
namespace {

std::once_flag first_choice;

void write_to_stderr(ggml_log_level, const char* text, void*) {
  std::fputs(text, stderr);
}
void drop(ggml_log_level, const char*, void*) {}

}  // namespace

void set_library_log(bool verbose) {
  std::call_once(first_choice, [] {});
  llama_log_set(verbose ? write_to_stderr : drop, nullptr);
}

void quiet_library_log() {
  std::call_once(first_choice, [] { llama_log_set(drop, nullptr); });
}

}  // namespace kvant
