#include "format/error_metric.h"

#include <cstddef>

#include "base/simd_clones.h"

namespace kvant {
namespace {

struct Sums {
  double aa = 0, ab = 0, bb = 0;
  double along_a[kMetricRank] = {}, along_b[kMetricRank] = {};
};

// Products of F32 numbers are exact in double, and the sums have a fixed order, so all instruction sets
// agree.
KVANT_SIMD_CLONES void add_up(const FeedbackStep* steps, std::size_t n, const float* a, const float* b,
                              Sums& sums) {
  double aa = 0, ab = 0, bb = 0;
  double along_a[kMetricRank] = {}, along_b[kMetricRank] = {};
  for (std::size_t i = 0; i < n; ++i) {
    const double x = a[i], y = b[i];
    double v[kMetricRank];
    for (int r = 0; r < kMetricRank; ++r) v[r] = steps[i].directions[r];
    for (int r = 0; r < kMetricRank; ++r) along_a[r] += v[r] * x;
    for (int r = 0; r < kMetricRank; ++r) along_b[r] += v[r] * y;
    aa += x * x;
    ab += x * y;
    bb += y * y;
  }
  sums = {aa, ab, bb, {}, {}};
  for (int r = 0; r < kMetricRank; ++r) {
    sums.along_a[r] = along_a[r];
    sums.along_b[r] = along_b[r];
  }
}

}  // namespace

ErrorMetric::ErrorMetric(std::span<const float> directions) : steps_(directions.size() / kMetricRank) {
  double k[kMetricRank][kMetricRank] = {};
  for (int a = 0; a < kMetricRank; ++a) k[a][a] = 1;
  for (std::size_t i = steps_.size(); i-- > 0;) {
    const float* v = directions.data() + i * kMetricRank;
    double kv[kMetricRank] = {};
    double weight = 1;
    for (int a = 0; a < kMetricRank; ++a) {
      for (int b = 0; b < kMetricRank; ++b) kv[a] += k[a][b] * v[b];
      weight += kv[a] * v[a];
    }
    steps_[i].weight = static_cast<float>(weight);
    for (int a = 0; a < kMetricRank; ++a) {
      steps_[i].directions[a] = v[a];
      steps_[i].feedback[a] = static_cast<float>(kv[a] / weight);
      for (int b = 0; b < kMetricRank; ++b) k[a][b] -= kv[a] * kv[b] / weight;
    }
  }
}

ErrorMetric::Products ErrorMetric::products(const float* a, const float* b) const {
  Sums sums;
  add_up(steps_.data(), steps_.size(), a, b, sums);
  for (int r = 0; r < kMetricRank; ++r) {
    sums.aa += sums.along_a[r] * sums.along_a[r];
    sums.ab += sums.along_a[r] * sums.along_b[r];
    sums.bb += sums.along_b[r] * sums.along_b[r];
  }
  return {sums.aa, sums.ab, sums.bb};
}

}  // namespace kvant
