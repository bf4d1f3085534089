// Computes priorities of heads for mixed formats (TurboAttention, sections 3.2 and 5.6). In each layer, the
// heads with the lowest priority get fewer bits.
#pragma once

#include <span>
#include <string>

#include "base/matrix_view.h"

namespace kvant {

// PriorityMetric measures how much few bits harm a head's values [n, d], n > 0. A head with a larger value
// needs more bits.
struct PriorityMetric {
  const char* name;  // the recipe's mix_metric has this name
  double (*measure)(MatrixView<const float> values);
};

// Returns all metrics. gap-std is a product: the gap between the largest and the smallest value of all
// channels, times the standard deviation of the channels' own gaps. min-max is the first factor alone, and
// variation is the second factor alone. entropy is the entropy of a histogram of all values, in bits.
std::span<const PriorityMetric> priority_metrics();

}  // namespace kvant
