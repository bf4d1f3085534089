// The Lloyd-Max levels, found once: their iteration takes milliseconds.
#pragma once

#include <cmath>
#include <vector>

#include "format/lloyd_max.h"

namespace kvant::cuda {

inline const std::vector<double>& standard_levels(int bits) {
  static const std::vector<double> levels[] = {lloyd_max_levels(2), lloyd_max_levels(3), lloyd_max_levels(4),
                                               lloyd_max_levels(5)};
  return levels[bits - 2];
}

// The levels of coordinates of unit vectors [d], whose deviation is 1 / sqrt(d).
inline void set_unit_levels(int bits, int d, float* levels) {
  const float deviation = 1 / std::sqrt(static_cast<float>(d));
  for (const double level : standard_levels(bits)) *levels++ = static_cast<float>(level) * deviation;
}

}  // namespace kvant::cuda
