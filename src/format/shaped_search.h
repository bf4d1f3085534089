// Searches for the trellis path (trellis.h) of least cost under an ErrorMetric. It works in integers, so
// every processor finds the same path.
//
// trellis_viterbi.h defines nodes and parents. One path to each node survives, with the sums of its errors.
// For value x, in the units of ShapedFilter:
//   target of a parent  t = x + g.s, clamped to kReach and rounded to a multiple of 2^shaped_grain
//   branch              cost of the parent + (t - level)^2. Costs are divided by D_i and are multiples
//                       of 2^B; their lowest B bits hold those of the state and so identify the branch. A
//                       minimum therefore finds both, and ties go to the lowest state.
//   survivor            s = s of the parent + V (x - level), modulo 2^16; cost * fade
// A path that must begin in the seam takes the seam's bits until a node remembers only later ones; the bit
// above all costs bars other branches.
//
// Files that are compiled for newer processors include this header, so it only declares.
#pragma once

#include <cstdint>
#include <vector>

#include "format/error_metric.h"
#include "format/trellis_code.h"

namespace kvant {

inline constexpr int kShapedTrace = 256;  // bytes for each value
inline constexpr std::uint32_t kBarred = 1U << 31;
inline constexpr int kReach = 1 << 14;  // targets lie in -kReach .. kReach - 1

// Holds the numbers of value i in the units of ShapedFilter. D, g and V: error_metric.h.
struct ShapedStep {
  std::int16_t feedback[kMetricRank];    // g_i, times 2^kTargetShift
  std::int16_t directions[kMetricRank];  // V_i, times 2^15
  bool settles;                          // whether the least cost is then subtracted from all costs,
  std::int32_t limit;                    // which are clamped to this limit
  float fade;                            // and multiplied by D_i / D_(i+1)
};

inline constexpr int kTargetShift = 8;
inline constexpr int kMostValue = 24000;  // limit of values, so a value plus a level fits in 16 bits
inline constexpr std::int32_t kCostLimit = 1 << 30;

constexpr int shaped_grain(int bits) {
  return (bits + 1) / 2;
}

// A branch costs base - 2 t l + l^2, with the parent's base = cost + t^2. Vector units add products of pairs
// of 16-bit numbers. For a branch these are (t, u) of the target and (-2 l, l^2 / u - u) of the level, where
// u is the square of the smallest level; for the base they are (t, u) with itself.
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
  const std::int8_t* levels;  // of all 256 states, in units of 2^level_shift
  int level_shift;
  const ShapedStep* steps;  // [n]
  int n;
};

// Describes the search for one instruction set.
struct ShapedKernel {
  const char* name;  // "avx512"
  // trace: room for kShapedTrace * n bytes.
  void (*search)(const ShapedCode& code, const ShapedRow* rows, int n_rows, std::uint8_t* trace);
};

const ShapedKernel& portable_shaped_search();
const ShapedKernel* avx2_shaped_search();  // null where the build has none
const ShapedKernel* avx512_shaped_search();
// Returns the searches that this machine can run, fastest first.
std::vector<const ShapedKernel*> runnable_shaped_searches();
const ShapedKernel& best_shaped_search();

}  // namespace kvant
