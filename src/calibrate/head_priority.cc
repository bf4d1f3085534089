#include "calibrate/head_priority.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

namespace kvant {
namespace {

struct Range {
  float low = std::numeric_limits<float>::infinity();
  float high = -std::numeric_limits<float>::infinity();
  void include(float x) {
    low = std::min(low, x);
    high = std::max(high, x);
  }
  double gap() const { return static_cast<double>(high) - low; }
};

std::vector<Range> channel_ranges(MatrixView<const float> values) {
  std::vector<Range> ranges(values.cols);
  for (int r = 0; r < values.rows; ++r)
    for (int c = 0; c < values.cols; ++c) ranges[c].include(values.row(r)[c]);
  return ranges;
}

Range whole_range(MatrixView<const float> values) {
  Range whole;
  for (const Range& range : channel_ranges(values)) {
    whole.include(range.low);
    whole.include(range.high);
  }
  return whole;
}

double min_max(MatrixView<const float> values) {
  return whole_range(values).gap();
}

double variation(MatrixView<const float> values) {
  double sum = 0;
  double squares = 0;
  for (const Range& range : channel_ranges(values)) {
    sum += range.gap();
    squares += range.gap() * range.gap();
  }
  const double mean = sum / values.cols;
  return std::sqrt(std::max(0.0, squares / values.cols - mean * mean));
}

double gap_std(MatrixView<const float> values) {
  return min_max(values) * variation(values);
}

double entropy(MatrixView<const float> values) {
  constexpr int kBins = 256;
  const Range range = whole_range(values);
  if (range.gap() <= 0) return 0;
  std::array<double, kBins> counts{};
  for (int r = 0; r < values.rows; ++r) {
    for (int c = 0; c < values.cols; ++c) {
      const double place = (static_cast<double>(values.row(r)[c]) - range.low) / range.gap() * kBins;
      ++counts[std::min(kBins - 1, static_cast<int>(place))];
    }
  }
  double bits = 0;
  const double n = static_cast<double>(values.rows) * values.cols;
  for (const double count : counts)
    if (count > 0) bits -= count / n * std::log2(count / n);
  return bits;
}

constexpr PriorityMetric kMetrics[] = {
    {"gap-std", gap_std},
    {"entropy", entropy},
    {"min-max", min_max},
    {"variation", variation},
};

}  // namespace

std::span<const PriorityMetric> priority_metrics() {
  return kMetrics;
}

}  // namespace kvant
