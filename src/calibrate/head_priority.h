// Priorities of heads for mixed formats (TurboAttention, section 3.2 and the ablation in 5.6).
#pragma once

#include <span>
#include <string>

#include "base/matrix_view.h"

namespace kvant {

// A measure of how much a head's values [n, d] (n > 0) suffer from few bits. A larger value asks for more
// bits.
struct PriorityMetric {
  const char* name;  // as a recipe's mix_metric names it
  double (*measure)(MatrixView<const float> values);
};

// gap-std: the gap between the largest and the smallest value of all channels, times the standard deviation
// of the channels' own gaps. min-max: the first factor alone. variation: the second factor alone. entropy: of
// a histogram of all values, in bits.
std::span<const PriorityMetric> priority_metrics();

}  // namespace kvant
