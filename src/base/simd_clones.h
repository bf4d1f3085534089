// KVANT_SIMD_CLONES before a function definition: compiled once for each of these instruction sets, the
// right copy chosen at run time. For plain loops that the compiler vectorizes. Not with sanitizers: copies
// are chosen before their libraries have started.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define KVANT_SIMD_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define KVANT_SIMD_CLONES
#endif

namespace kvant {

// Independent partial results of a reduction in such a loop, so that it vectorizes without reordering sums.
inline constexpr int kReductionLanes = 16;

}  // namespace kvant
