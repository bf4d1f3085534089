// ShapedFilter is an ErrorMetric in integers, for the search for codes of one trellis table
// (shaped_search.h).
//
// Values, levels and errors are counted in units of scale / 2^level_shift, with the table's scale, and fit in
// 16 bits. The sums s of errors along the metric's directions have units in which a direction's largest
// number is nearly 1. An error therefore adds at most itself to a sum. The sums also fit in 16 bits, because
// feedback keeps the sums of surviving paths small.
#pragma once

#include <vector>

#include "format/error_metric.h"
#include "format/shaped_search.h"
#include "format/trellis.h"

namespace kvant {

struct ShapedFilter {
  ShapedFilter(const ErrorMetric& metric, const TrellisTable& table);

  int level_shift;
  float units;                    // number of units in a value of 1
  std::vector<ShapedStep> steps;  // [d]
};

}  // namespace kvant
