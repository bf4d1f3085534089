#include "attention/cpu/byte_kernels.h"

#include <cstring>
#include <iterator>

namespace kvant::cpu {
namespace {

#if defined(__x86_64__)
bool runs_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi") &&
         __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("gfni");
}
bool runs_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
#else
bool runs_avx512() {
  return false;
}
bool runs_avx2() {
  return false;
}
#endif

}  // namespace

const ByteKernels* find_kernels(const char* name) {
  const ByteKernels* known[] = {runs_avx512() ? avx512_kernels() : nullptr,
                                runs_avx2() ? avx2_kernels() : nullptr, &portable_kernels()};
  for (const ByteKernels* kernels : known) {
    if (kernels != nullptr && (name == nullptr || std::strcmp(kernels->name, name) == 0)) return kernels;
  }
  return nullptr;
}

const ByteKernels& best_kernels() {
  return *find_kernels(nullptr);
}

}  // namespace kvant::cpu
