#include "calibrate/row_sums.h"

#include "base/simd_clones.h"

namespace kvant {

KVANT_SIMD_CLONES double dot_row(const float* a, const float* b, int n) {
  double sums[kReductionLanes] = {};
  int i = 0;
  for (; i + kReductionLanes <= n; i += kReductionLanes)
    for (int lane = 0; lane < kReductionLanes; ++lane)
      sums[lane] += static_cast<double>(a[i + lane]) * b[i + lane];
  for (; i < n; ++i) sums[0] += static_cast<double>(a[i]) * b[i];
  double sum = 0;
  for (const double s : sums) sum += s;
  return sum;
}

KVANT_SIMD_CLONES double difference_dot_row(const float* a, const float* b, const float* c, int n) {
  double sums[kReductionLanes] = {};
  int i = 0;
  for (; i + kReductionLanes <= n; i += kReductionLanes)
    for (int lane = 0; lane < kReductionLanes; ++lane)
      sums[lane] += static_cast<double>(a[i + lane] - b[i + lane]) * c[i + lane];
  for (; i < n; ++i) sums[0] += static_cast<double>(a[i] - b[i]) * c[i];
  double sum = 0;
  for (const double s : sums) sum += s;
  return sum;
}

}  // namespace kvant
