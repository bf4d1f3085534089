#include "cli/library_settings.h"

#include <unistd.h>

#include <cstdlib>
#include <vector>

namespace kvant {
namespace {

struct Setting {
  const char* name;
  const char* value;
};

std::vector<Setting> settings() {
  // GNU's OpenMP, whose barriers are ggml's, spins for milliseconds before a waiting thread sleeps. On a
  // machine that does other work, too, that makes a token many times slower: the thread that is waited for
  // does not get the core. About 0.05 ms of spinning costs nothing on an idle machine.
  std::vector<Setting> wanted;
  if (std::getenv("OMP_WAIT_POLICY") == nullptr) wanted.push_back({"GOMP_SPINCOUNT", "1000"});
#if defined(__x86_64__)
  // OpenBLAS 0.3.21 knows processors by their model number, and takes those that are newer for a Pentium 4.
  __builtin_cpu_init();
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
  if (avx512) {
    wanted.push_back({"OPENBLAS_CORETYPE", "SkylakeX"});
  } else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    wanted.push_back({"OPENBLAS_CORETYPE", "Haswell"});
  }
#endif
  return wanted;
}

}  // namespace

void restart_with_library_settings(char** argv) {
  bool changed = false;
  for (const Setting& setting : settings()) {
    if (std::getenv(setting.name) != nullptr) continue;
    changed = setenv(setting.name, setting.value, 0) == 0 || changed;
  }
  if (changed) execv("/proc/self/exe", argv);
}

}  // namespace kvant
