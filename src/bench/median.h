// Computes the median, which summarizes a benchmark's repeated runs. A few slow runs do not change a median.
#pragma once

#include <algorithm>
#include <vector>

#include "base/check.h"

namespace kvant {

// Returns the median of `values`. For an even number of values, the median is the mean of the middle two.
// Requires at least one value.
inline double median(std::vector<double> values) {
  KVANT_CHECK(!values.empty(), "the median of nothing");
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

}  // namespace kvant
