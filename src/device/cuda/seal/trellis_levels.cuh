// Finds levels for trellises in which several states lead from one node to another (5 and 6 bits per value).
// A value gets the state whose level is nearest. A table gives that level for each bin of values. Levels are
// integers, so bins of half a level are fine enough.
#pragma once

#include "device/cuda/page/page_layout.h"
#include "format/trellis_code.h"

namespace kvant::cuda {

// Computes state_level() (src/format/trellis_code.h) for a state that is known only at run time.
template <int Bits>
__device__ __forceinline__ int level_of_state(int state) {
  constexpr TrellisCode kCode = kTrellisCodes[Bits - 1];
  const int mixed = state ^ state << kCode.mix;
  const int folded = (state << kCode.fold & kCode.fold_mask) | (mixed & ~kCode.fold_mask);
  return (static_cast<signed char>(mixed) + static_cast<signed char>(folded)) / 2;
}

template <int Bits>
struct alignas(16) NearestLevels {
  static constexpr int kNodes = kTrellisStates >> Bits;
  static constexpr int kBranches = kNodes * kNodes;  // pairs of nodes; the index is to * kNodes + from
  static constexpr int kBetween = kTrellisStates / kBranches;
  static constexpr int kBins = 2 * kTrellisStates;
  static constexpr int kOffset = 128;  // added to levels that are stored in bytes

  static constexpr int kPieces = kBranches / 16;  // pieces of 16 bytes in each bin

  // For each bin and branch, `nearest` holds the level of the nearest state plus kOffset. The pieces of a bin
  // are permuted, which puts the pieces of several bins into different banks.
  unsigned char nearest[kBins][kBranches];
  unsigned char of_states[kTrellisStates];  // level of each state plus kOffset

  // Returns the bin of a value x, which is in levels.
  static __device__ __forceinline__ int bin_of(float x) {
    return min(max(__float2int_rd(2 * x), -kBins / 2), kBins / 2 - 1) + kBins / 2;
  }

  __device__ void fill() {
    const auto thread = static_cast<int>(threadIdx.x);
    const auto threads = static_cast<int>(blockDim.x);
    for (int state = thread; state < kTrellisStates; state += threads)
      of_states[state] = static_cast<unsigned char>(level_of_state<Bits>(state) + kOffset);
    const int branch = thread % kBranches;
    int levels[kBetween];
#pragma unroll
    for (int i = 0; i < kBetween; ++i)
      levels[i] = level_of_state<Bits>(branch / kNodes << Bits | i * kNodes | branch % kNodes);
    for (int bin = thread / kBranches; bin < kBins; bin += threads / kBranches) {
      const int middle = 2 * bin + 1 - kBins;  // middle of the bin in quarters of a level
      int best = 0x7fffffff;                   // distance, with the level in the lowest byte
#pragma unroll
      for (const int level : levels) best = min(best, abs(middle - 4 * level) * 256 + (level + kOffset));
      of_branch(bin, branch) = static_cast<unsigned char>(best);
    }
  }

  // Returns the place of piece i of a bin.
  static __device__ __forceinline__ int place(int bin, int i) {
    return i ^ bin / 2 % kPieces;
  }
  __device__ __forceinline__ uint4 piece(int bin, int i) const {
    return reinterpret_cast<const uint4*>(nearest[bin])[place(bin, i)];
  }
  __device__ __forceinline__ unsigned char& of_branch(int bin, int branch) {
    return nearest[bin][place(bin, branch / 16) * 16 + branch % 16];
  }
  // Returns the state whose level is nearest to x among the states that lead from node `from` to node `to`.
  __device__ unsigned state_of(float x, unsigned to, unsigned from) {
    const unsigned char level = of_branch(bin_of(x), static_cast<int>(to * kNodes + from));
    const unsigned first = to << Bits | from;
    unsigned state = first;
#pragma unroll
    for (int i = 1; i < kBetween; ++i)
      if (of_states[first | i * kNodes] == level) state = first | i * kNodes;
    return state;
  }
};

}  // namespace kvant::cuda
