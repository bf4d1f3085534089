#include "device/cpu/kernels/byte_kernels.h"

#include <cstring>
#include <iterator>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace kvant::cpu {
namespace {

#if defined(__x86_64__)
// Asks the processor itself, because Clang 14's __builtin_cpu_supports does not know F16C.
bool has_f16c() {
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
bool runs_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}
// Each function asks for all instructions for which its kernels are compiled (cmake/instruction_sets.cmake).
bool runs_avx512() {
  return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi") &&
         __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("gfni");
}
// AVX-VNNI is bit 4 of EAX in the second part of leaf 7. Older compilers have no name for this bit.
bool runs_avxvnni() {
  unsigned eax, ebx, ecx, edx;
  if (!runs_avx2() || __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || (ecx & bit_GFNI) == 0)
    return false;
  constexpr unsigned kAvxVnni = 1U << 4;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & kAvxVnni) != 0;
}
#else
bool runs_avx512() {
  return false;
}
bool runs_avx2() {
  return false;
}
bool runs_avxvnni() {
  return false;
}
#endif
bool runs_portable() {
  return true;
}

}  // namespace

const ByteKernels* find_kernels(const char* name) {
  const ByteKernels* known[] = {
#define KVANT_INSTRUCTION_SET(set) runs_##set() ? set##_kernels() : nullptr,
#include "device/cpu/kernels/instruction_sets.def"
#undef KVANT_INSTRUCTION_SET
  };
  for (const ByteKernels* kernels : known) {
    if (kernels != nullptr && (name == nullptr || std::strcmp(kernels->name, name) == 0)) return kernels;
  }
  return nullptr;
}

const ByteKernels* best_kernels() {
  return find_kernels(nullptr);
}

}  // namespace kvant::cpu
