// KVANT_SIMD_CLONES before a function definition compiles the function once for each instruction set in the
// macro's list. The program chooses the best copy at run time. The macro suits plain loops that the compiler
// vectorizes. Under sanitizers the macro is empty, because copies are chosen before the sanitizers' libraries
// have started.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define KVANT_SIMD_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define KVANT_SIMD_CLONES
#endif

namespace kvant {

// kReductionLanes is the number of partial results in a reduction. With separate partial results a loop
// vectorizes without reordering sums.
inline constexpr int kReductionLanes = 16;

}  // namespace kvant
