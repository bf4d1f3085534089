// The Viterbi algorithm on a bit-shift trellis (trellis.h), in 16-bit integers: the same result on every
// processor.
//
// A node is what a state shares with its neighbours, 8 - B bits: state s leads from node s & (G - 1) to node
// s >> B, so there are G = 2^(8-B) nodes. Node q has P = min(2^B, G) parents: parent k is node ((q << B) & (G
// - 1)) + k. For B > 4 several states lead from one node to another; the caller keeps the cheapest of them.
//
// Included where code is compiled for newer processors: declares only.
#pragma once

#include <cstdint>

namespace kvant {

inline constexpr int kViterbiStride[] = {0, 128, 64, 32, 16, 16, 16};  // for B: G, and at least 16
inline constexpr int kViterbiBlock = 16;  // steps after which the least cost is subtracted from all

inline constexpr std::uint8_t kNoNode = 0xff;

// The branches that values may take, with their costs. Sums saturate at 2^16 - 1.
struct ViterbiBranches {
  int bits;                       // B
  const std::uint16_t* forward;   // blocks [P][G]: from parent k to node q
  const std::uint16_t* backward;  // blocks [G][P]: the same
};

struct ViterbiRow {
  const std::uint16_t* bins;  // [n]: which block of costs counts for each value
  // [n + 1][kViterbiStride]: the cost of the cheapest path to each node over the first 0, 1, ... values, less
  // what all paths have in common.
  std::uint16_t* least;
  std::uint8_t* nodes;  // [n + 1]: a path
};

// One instruction set.
struct ViterbiKernel {
  const char* name;  // "avx2"
  // Fills least from its first step, which is given.
  void (*forward)(const ViterbiBranches& branches, int n, const ViterbiRow* rows, int n_rows);
  // Writes nodes[n - 1] to nodes[0] of the cheapest path that ends in nodes[n]; among equal parents, the one
  // of the lowest number. They hold kNoNode, or such a path to another end: the part that both paths have in
  // common is not searched again.
  void (*trace)(const ViterbiBranches& branches, int n, const ViterbiRow* rows, int n_rows);
};

const ViterbiKernel& portable_viterbi();
const ViterbiKernel* avx2_viterbi();  // null where the build has none
// The best one that this machine can run.
const ViterbiKernel& best_viterbi();

}  // namespace kvant
