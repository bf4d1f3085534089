// Declares the Viterbi search on a bit-shift trellis (trellis.h) for TrellisEncoder. Costs are 16-bit
// integers, so every processor gives the same result.
//
// A node is the part of a state that neighbouring states share, 8 - B bits. State s leads from node s & (G -
// 1) to node s >> B, so there are G = 2^(8-B) nodes. Node q has P = min(2^B, G) parents. Parent k is node ((q
// << B) & (G - 1)) + k. A branch leads from a parent to a node. For B > 4, several states belong to one
// branch, and the caller keeps the cheapest state.
//
// Files that are compiled for newer processors include this header, so it must not define functions.
#pragma once

#include <cstdint>

namespace kvant {

// kViterbiStride[B] is G, but at least 16.
inline constexpr int kViterbiStride[] = {0, 128, 64, 32, 16, 16, 16};
inline constexpr int kViterbiBlock = 16;  // steps between subtractions of the least cost

inline constexpr std::uint8_t kNoNode = 0xff;

// Holds the costs of the branches. Sums of costs saturate at 2^16 - 1.
struct ViterbiBranches {
  int bits;                       // B, the bits per value
  const std::uint16_t* forward;   // blocks [P][G]: the costs from parent k to node q
  const std::uint16_t* backward;  // blocks [G][P]: the same costs
};

struct ViterbiRow {
  const std::uint16_t* bins;  // [n], the block of costs for each value
  // `least` [n + 1][kViterbiStride] holds the cost of the cheapest path to each node over the first 0, 1, ...
  // values. Row i leaves out a part that all paths share.
  std::uint16_t* least;
  std::uint8_t* nodes;  // [n + 1], the nodes of a path
};

// Describes the search for one instruction set.
struct ViterbiKernel {
  const char* name;  // such as "avx2"
  // Computes `least` for all steps. The caller sets the first row.
  void (*forward)(const ViterbiBranches& branches, int n, const ViterbiRow* rows, int n_rows);
  // Writes nodes[n - 1] to nodes[0] of the cheapest path that ends in nodes[n]. At a tie, the parent with the
  // lowest number wins. On entry the nodes hold kNoNode, or a path that an earlier call has traced from
  // another end. The part that both paths share is not searched again.
  void (*trace)(const ViterbiBranches& branches, int n, const ViterbiRow* rows, int n_rows);
};

const ViterbiKernel& portable_viterbi();
// Each is null if the build has no such code.
const ViterbiKernel* avx2_viterbi();
const ViterbiKernel* neon_viterbi();
// Returns the fastest kernel that this machine can run.
const ViterbiKernel& best_viterbi();

}  // namespace kvant
