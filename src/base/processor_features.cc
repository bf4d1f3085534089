#include "base/processor_features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace kvant {
namespace {

#if defined(__x86_64__)
ProcessorFeatures find_features() {
  __builtin_cpu_init();
  // The processor itself is asked for F16C, GFNI and AVX-VNNI, because older compilers lack some of these
  // names. AVX-VNNI is bit 4 of EAX in the second part of leaf 7.
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  const bool gfni = __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_GFNI) != 0;
  constexpr unsigned kAvxVnni = 1U << 4;
  const bool avxvnni = __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & kAvxVnni) != 0;
  const bool avx2 = __builtin_cpu_supports("avx2") != 0;
  return {.avx = __builtin_cpu_supports("avx") != 0,
          .avx2 = avx2,
          .fma = __builtin_cpu_supports("fma") != 0,
          .f16c = f16c && avx2,
          .bmi2 = __builtin_cpu_supports("bmi2") != 0,
          .gfni = gfni && avx2,
          .avxvnni = avxvnni && avx2,
          .avx512 = __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
                    __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0,
          .avx512_vnni = __builtin_cpu_supports("avx512vnni") != 0,
          .avx512_vbmi = __builtin_cpu_supports("avx512vbmi") != 0,
          .avx512_vbmi2 = __builtin_cpu_supports("avx512vbmi2") != 0,
          .avx512_bf16 = __builtin_cpu_supports("avx512bf16") != 0};
}
#elif defined(__aarch64__) && defined(__linux__)
// The bits are those of Linux's asm/hwcap.h, whose older versions lack the second name.
ProcessorFeatures find_features() {
  constexpr unsigned long kDotProd = 1UL << 20, kI8mm = 1UL << 13;
  return {.neon = true,
          .dotprod = (getauxval(AT_HWCAP) & kDotProd) != 0,
          .i8mm = (getauxval(AT_HWCAP2) & kI8mm) != 0};
}
#elif defined(__aarch64__) && defined(__APPLE__)
bool has(const char* name) {
  int value = 0;
  size_t size = sizeof value;
  return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
}
ProcessorFeatures find_features() {
  return {
      .neon = true, .dotprod = has("hw.optional.arm.FEAT_DotProd"), .i8mm = has("hw.optional.arm.FEAT_I8MM")};
}
#else
ProcessorFeatures find_features() {
  return {};
}
#endif

}  // namespace

const ProcessorFeatures& processor_features() {
  static const ProcessorFeatures features = find_features();
  return features;
}

}  // namespace kvant
