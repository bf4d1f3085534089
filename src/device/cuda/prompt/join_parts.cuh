// Joins the results of blocks that several CTAs share, each with a part of the tiles. Each CTA that finishes
// leaves its sums in memory, and the last CTA adds the sums of all CTAs. Parts are added in the order of
// their tiles, so results do not depend on which CTA is the last.
#pragma once

#include "device/cuda/prompt/join_halves.cuh"

namespace kvant::cuda {

// If this CTA is not the last to finish, leaves this CTA's sums and returns false. Otherwise, adds all parts
// and returns true. All threads of a group of rows must call this function. The group is number n of n_groups
// in all heads' blocks of the item.
template <int D, int Threads, int N>
__device__ __forceinline__ bool join_parts(const PromptArgs& args, const PromptItem& item, int n,
                                           int n_groups, int barrier, int thread, int& claim, RowSums& rows,
                                           float (&sums)[N]) {
  static_assert(2 * N == D && N % 2 == 0);
  std::int32_t* claims = args.claims + static_cast<std::int64_t>(item.split * n_groups + n) * kClaims;
  const auto slot = [&](int i) {
    return args.halves +
           static_cast<std::int64_t>((item.first_cut + i) * n_groups + n) * HalfSums<D, Threads>::kNumbers +
           thread;
  };
  if (thread == 0) claim = add_acquire_release(&claims[0], 1);
  named_barrier(barrier, Threads);
  if (claim + 1 < item.n_parts) {
    float* own = slot(claim);
#pragma unroll
    for (int i = 0; i < N; ++i) own[i * Threads] = sums[i];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      own[(N + row) * Threads] = rows.reference[row];
      own[(N + 2 + row) * Threads] = rows.mass[row];
      own[(N + 4 + row) * Threads] = rows.offset[row];
    }
    if (thread == 0) claims[2 + item.part] = claim;
    __threadfence();
    named_barrier(barrier, Threads);
    if (thread == 0) add_acquire_release(&claims[1], 1);
    return false;
  }
  if (thread == 0)
    while (add_acquire_release(&claims[1], 0) + 1 < item.n_parts) {
    }
  named_barrier(barrier, Threads);
  __threadfence();
  const auto part = [&](int i) { return slot(__ldcg(claims + 2 + i)); };
  float reference[2] = {rows.reference[0], rows.reference[1]};
#pragma unroll 1
  for (int i = 0; i < item.n_parts; ++i) {
    if (i == item.part) continue;
    const float* from = part(i);
#pragma unroll
    for (int row = 0; row < 2; ++row)
      reference[row] = fmaxf(reference[row], __ldcg(from + (N + row) * Threads));
  }
  const auto add = [](float sum, float x, float factor) { return __fadd_rn(sum, __fmul_rn(x, factor)); };
  float mass[2] = {}, offset[2] = {};
  // This many sums are added together. Single warps have no registers for more.
  constexpr int kTogether = N < 16 ? N : Threads > 32 ? 32 : 16;
  static_assert(N % kTogether == 0);
#pragma unroll
  for (int first = 0; first < N; first += kTogether) {
    float total[kTogether] = {};
    const auto add_part = [&](const auto& number) {
      float factor[2];
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        factor[row] = exp2_fast(number(N + row) - reference[row]);
        if (first > 0) continue;
        mass[row] = add(mass[row], number(N + 2 + row), factor[row]);
        offset[row] = add(offset[row], number(N + 4 + row), factor[row]);
      }
#pragma unroll
      for (int j = 0; j < kTogether; ++j) total[j] = add(total[j], number(first + j), factor[j / 2 % 2]);
    };
#pragma unroll 1
    for (int i = 0; i < item.n_parts; ++i) {
      if (i == item.part) {
        add_part([&](int j) {
          return j < N       ? sums[j % N]
                 : j < N + 2 ? rows.reference[j % 2]
                 : j < N + 4 ? rows.mass[j % 2]
                             : rows.offset[j % 2];
        });
      } else {
        const float* from = part(i);
        add_part([&](int j) { return __ldcg(from + j * Threads); });
      }
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) sums[first + j] = total[j];
  }
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    rows.reference[row] = reference[row];
    rows.mass[row] = mass[row];
    rows.offset[row] = offset[row];
  }
  return true;
}

}  // namespace kvant::cuda
