// An ErrorMetric as a filter in integers, for the search for codes of one trellis table (shaped_search.h).
//
// Values, levels and errors are counted in units of scale / 2^level_shift, the table's scale, and fit 16
// bits. An error's sums s along the metric's directions are counted in units in which a direction's largest
// number is nearly 1, so that an error adds no more than itself: s fits 16 bits as well, since feedback keeps
// what survives small.
#pragma once

#include <vector>

#include "format/error_metric.h"
#include "format/shaped_search.h"
#include "format/trellis.h"

namespace kvant {

struct ShapedFilter {
  ShapedFilter(const ErrorMetric& metric, const TrellisTable& table);

  int level_shift;
  float units;                    // of a value of 1
  std::vector<ShapedStep> steps;  // [d]
};

}  // namespace kvant
