// The search for a trellis path (trellis.h) whose errors cost least under an ErrorMetric, in integers: the
// same path on every processor.
//
// Nodes and parents: trellis_viterbi.h. Of the paths to a node one survives, with what its errors add up to.
// For value x, in the units of ShapedFilter:
//   target of a parent  t = x + g.s, cut to kReach and rounded to a multiple of 2^shaped_grain
//   branch              cost of the parent + (t - level)^2. Costs are over D_i, and multiples of 2^B: in the
//                       lowest B bits lie those of the state, which say by which branch a path comes, so
//                       that a minimum finds both; among equals, the lowest.
//   what survives       s = s of the parent + V (x - level), modulo 2^16; cost * fade
// A path that must begin in the seam comes by the seam's bits until a node remembers only what came later;
// the bit above all costs bars other branches.
//
// Included where code is compiled for newer processors: declares only.
#pragma once

#include <cstdint>
#include <vector>

#include "format/error_metric.h"
#include "format/trellis_code.h"

namespace kvant {

inline constexpr int kShapedTrace = 256;  // bytes for each value
inline constexpr std::uint32_t kBarred = 1U << 31;
inline constexpr int kReach = 1 << 14;  // of targets: -kReach to kReach - 1

// Of value i, in the units of ShapedFilter. D, g, V: error_metric.h.
struct ShapedStep {
  std::int16_t feedback[kMetricRank];    // g_i, times 2^kTargetShift
  std::int16_t directions[kMetricRank];  // V_i, times 2^15
  bool settles;                          // afterwards the least cost is subtracted from all,
  std::int32_t limit;                    // what is left is cut to this,
  float fade;                            // and multiplied by D_i / D_(i+1)
};

inline constexpr int kTargetShift = 8;
inline constexpr int kMostValue = 24000;  // of values: they and a level fit 16 bits
inline constexpr std::int32_t kCostLimit = 1 << 30;

constexpr int shaped_grain(int bits) {
  return (bits + 1) / 2;
}

// A branch costs base - 2 t l + l^2, with the parent's base = cost + t^2. Vector units add up products of
// pairs of 16 bits: of (t, u) for a target and (-2 l, l^2 / u - u) for a level, where u is the square of the
// smallest level, and of (t, u) with itself in the base.
constexpr std::int32_t level_unit(int level_shift) {
  return 1 << (2 * level_shift);
}
constexpr std::int32_t factors_of_level(int level, int level_shift) {
  return (level * level - level_unit(level_shift)) * (1 << 16) | (-2 * level * (1 << level_shift) & 0xffff);
}

struct ShapedRow {
  const std::int16_t* values;  // [n], in units, within kMostValue
  std::uint8_t seam;           // the node in which the path begins, and ends
  std::uint8_t* states;        // [n]: written
};

struct ShapedCode {
  const TrellisCode* trellis;
  const std::int8_t* levels;  // of all its 256 states, over 2^level_shift units
  int level_shift;
  const ShapedStep* steps;  // [n]
  int n;
};

// One instruction set.
struct ShapedKernel {
  const char* name;  // "avx512"
  // trace: room for kShapedTrace * n bytes.
  void (*search)(const ShapedCode& code, const ShapedRow* rows, int n_rows, std::uint8_t* trace);
};

const ShapedKernel& portable_shaped_search();
const ShapedKernel* avx2_shaped_search();  // null where the build has none
const ShapedKernel* avx512_shaped_search();
// Those that this machine can run, the best one first.
std::vector<const ShapedKernel*> runnable_shaped_searches();
const ShapedKernel& best_shaped_search();

}  // namespace kvant
