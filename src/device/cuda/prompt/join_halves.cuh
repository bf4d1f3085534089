// Joins the results of blocks that two CTAs share. The CTA that finishes first leaves its sums in memory. The
// other CTA adds the stored sums to its own sums, and stores the result.
#pragma once

#include "device/cuda/prompt/prompt_args.h"
#include "device/cuda/prompt/weigh.cuh"

namespace kvant::cuda {

// Defines the numbers that each thread of a group of rows leaves: its sums, then the references, masses and
// offsets of its two rows. Numbers are interleaved by thread.
template <int D, int Threads>
struct HalfSums {
  static constexpr int kOfThread = D / 2 + 6;
  static constexpr int kNumbers = kOfThread * Threads;
};

// Computes x a + y b. Swapping (x, a) and (y, b) gives the same bits, so results do not depend on which CTA
// is first.
__device__ __forceinline__ float add_scaled(float x, float a, float y, float b) {
  return __fadd_rn(__fmul_rn(x, a), __fmul_rn(y, b));
}

// If this CTA is the first of two, leaves this CTA's sums and returns false. Otherwise, adds the other CTA's
// sums and returns true. All threads of a group must call this function. `half` is memory for the group's
// sums. `claims` points to two numbers of this block, head and group, which must be 0 initially.
template <int D, int Threads, int N>
__device__ __forceinline__ bool join_halves(float* half, std::int32_t* claims, int barrier, int thread,
                                            int& claim, RowSums& rows, float (&sums)[N]) {
  if (thread == 0) claim = add_acquire_release(&claims[0], 1);
  named_barrier(barrier, Threads);
  const bool is_first = claim == 0;
  float* own = half + thread;
  if (is_first) {
#pragma unroll
    for (int i = 0; i < N; ++i) own[i * Threads] = sums[i];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      own[(N + row) * Threads] = rows.reference[row];
      own[(N + 2 + row) * Threads] = rows.mass[row];
      own[(N + 4 + row) * Threads] = rows.offset[row];
    }
    __threadfence();
    named_barrier(barrier, Threads);
    if (thread == 0) add_acquire_release(&claims[1], 1);
    return false;
  }
  if (thread == 0)
    while (add_acquire_release(&claims[1], 0) == 0) {
    }
  named_barrier(barrier, Threads);
  __threadfence();
  float here[2], there[2];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const float other = __ldcg(own + (N + row) * Threads);
    const float reference = fmaxf(rows.reference[row], other);
    here[row] = exp2_fast(rows.reference[row] - reference);
    there[row] = exp2_fast(other - reference);
    rows.reference[row] = reference;
    rows.mass[row] = add_scaled(rows.mass[row], here[row], __ldcg(own + (N + 2 + row) * Threads), there[row]);
    rows.offset[row] =
        add_scaled(rows.offset[row], here[row], __ldcg(own + (N + 4 + row) * Threads), there[row]);
  }
#pragma unroll
  for (int i = 0; i < N; ++i)
    sums[i] = add_scaled(sums[i], here[i / 2 % 2], __ldcg(own + i * Threads), there[i / 2 % 2]);
  return true;
}

}  // namespace kvant::cuda
