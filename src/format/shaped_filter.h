// An ErrorMetric as a filter in integers, for the search for codes of one trellis table (shaped_search.h).
//
// Values, levels and errors are counted in units of scale / 2^level_shift, the table's scale, and fit 16
// bits. An error's sums s along the metric's directions are counted in units in which a direction's largest
// number is nearly 1, so that an error adds no more than itself: s fits 16 bits as well, since feedback keeps
// what survives small.
#pragma once

#include <cstdint>
#include <vector>

#include "format/error_metric.h"
#include "format/trellis.h"

namespace kvant {

// Of value i. D, g, V: error_metric.h.
struct ShapedStep {
  std::int16_t feedback[kMetricRank];    // g_i in units of s, times 2^kTargetShift
  std::int16_t directions[kMetricRank];  // V_i in units of s, times 2^15
  float fade;                            // D_i / D_(i+1): what becomes of costs over D
  std::int32_t limit;                    // costs are cut to this, so that they fit after fading
  bool settles;                          // the least cost is subtracted from all
};

inline constexpr int kMostValue = 24000;  // of values: they and a level fit 16 bits
inline constexpr int kTargetShift = 8;
inline constexpr std::int32_t kCostLimit = 1 << 30;

struct ShapedFilter {
  ShapedFilter(const ErrorMetric& metric, const TrellisTable& table);

  int level_shift;
  float units;                    // of a value of 1
  std::vector<ShapedStep> steps;  // [d]
};

}  // namespace kvant
