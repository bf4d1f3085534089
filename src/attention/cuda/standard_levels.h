// The Lloyd-Max levels, found once: their iteration takes milliseconds.
#pragma once

#include <vector>

#include "format/lloyd_max.h"

namespace kvant::cuda {

inline const std::vector<double>& standard_levels(int bits) {
  static const std::vector<double> levels[] = {lloyd_max_levels(2), lloyd_max_levels(3), lloyd_max_levels(4),
                                               lloyd_max_levels(5)};
  return levels[bits - 2];
}

}  // namespace kvant::cuda
