// Searches for the trellis path (trellis.h) of least cost under an ErrorMetric. The search works in integers,
// so every processor finds the same path.
//
// trellis_viterbi.h defines nodes and parents. For each node the cheapest path to this node survives,
// together with the sums s of its errors along the metric's directions. A value x, in the units of
// ShapedFilter, makes these steps:
//   target of a parent  t = x + g.s, clamped to kReach and rounded to a multiple of 2^shaped_grain
//   branch              cost of the parent + (t - level)^2. Costs are divided by D_i and are multiples
//                       of 2^B; their lowest B bits hold the lowest B bits of the branch's state. A
//                       minimum therefore finds cost and branch at once, and ties go to the lowest state.
//   survivor            s = s of the parent + U_i (x - level), modulo 2^16; cost * fade
// A path must begin in the seam. As long as a node contains bits of the seam, the paths to nodes with other
// bits are barred. The costs of barred paths get the bit kBarred, which is larger than all costs.
//
// Files that are compiled for newer processors include this header. The header declares functions, and
// defines only constexpr functions. So no other file can end up with code for a newer processor.
#pragma once

#include <cstdint>
#include <vector>

#include "format/error_metric.h"
#include "format/trellis_code.h"

namespace kvant {

inline constexpr int kShapedTrace = 256;  // bytes of trace per value
inline constexpr std::uint32_t kBarred = 1U << 31;
inline constexpr int kReach = 1 << 14;  // targets lie in -kReach .. kReach - 1

// Holds the numbers of value i in the units of ShapedFilter. error_metric.h defines D, g and U.
struct ShapedStep {
  std::int16_t feedback[kMetricRank];    // g_i, times 2^kTargetShift
  std::int16_t directions[kMetricRank];  // U_i, times 2^15
  bool settles;                          // whether the least cost is subtracted from all costs after the step
  std::int32_t limit;                    // the largest cost after the subtraction; larger costs are clamped
  float fade;                            // D_i / D_(i+1), the factor of all costs after the clamp
};

inline constexpr int kTargetShift = 8;
inline constexpr int kMostValue = 24000;  // values' limit, so value + level fits in 16 bits
inline constexpr std::int32_t kCostLimit = 1 << 30;

constexpr int shaped_grain(int bits) {
  return (bits + 1) / 2;
}

// A branch to level l costs base - 2 t l + l^2, where base = cost of the parent + t^2. Vector units add
// products of pairs of 16-bit numbers. With the square u of the smallest level, the base adds (t, u).(t, u)
// to the parent's cost. The branch then adds (t, u).(-2 l, l^2 / u - u) to the base, so u^2 cancels.
constexpr std::int32_t level_unit(int level_shift) {
  return 1 << (2 * level_shift);
}
constexpr std::int32_t factors_of_level(int level, int level_shift) {
  return (level * level - level_unit(level_shift)) * (1 << 16) | (-2 * level * (1 << level_shift) & 0xffff);
}

struct ShapedRow {
  const std::int16_t* values;  // [n], in units, at most kMostValue in magnitude
  std::uint8_t seam;           // the node in which the path begins and ends
  std::uint8_t* states;        // [n], the result
};

struct ShapedCode {
  const TrellisCode* trellis;
  const std::int8_t* levels;  // [256], one level per state, in units of 2^level_shift
  int level_shift;
  const ShapedStep* steps;  // [n]
  int n;
};

// Describes the search for one instruction set.
struct ShapedKernel {
  const char* name;  // such as "avx512"
  // `trace` is scratch memory of kShapedTrace * n bytes.
  void (*search)(const ShapedCode& code, const ShapedRow* rows, int n_rows, std::uint8_t* trace);
};

const ShapedKernel& portable_shaped_search();
// Each is null if the build has no such code.
const ShapedKernel* avx2_shaped_search();
const ShapedKernel* avx512_shaped_search();
const ShapedKernel* neon_shaped_search();
// Returns the searches that this machine can run, fastest first.
std::vector<const ShapedKernel*> runnable_shaped_searches();
const ShapedKernel& best_shaped_search();

}  // namespace kvant
