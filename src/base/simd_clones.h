// KVANT_SIMD_CLONES before a function definition compiles it once for each of these instruction sets; the
// right copy is chosen at run time. It suits plain loops that the compiler vectorizes. Sanitizers disable it,
// because copies are chosen before their libraries have started.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define KVANT_SIMD_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define KVANT_SIMD_CLONES
#endif

namespace kvant {

// The number of partial results in a reduction, which lets such a loop vectorize without reordering sums.
inline constexpr int kReductionLanes = 16;

}  // namespace kvant
