#include "format/shaped_filter.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace kvant {
namespace {

// kLevelShift[B] is the level_shift for B bits. The root mean square of an error is then 350, 370, 380, 190,
// 100 and 42 units for 1 to 6 bits.
constexpr int kLevelShift[] = {0, 3, 5, 6, 6, 6, 6};
// Returns the number of steps after which the least cost is subtracted from all costs (ShapedStep::settles),
// so costs fit in 32 bits. In these steps, costs grow by up to 4.2e8 with 1 and 2 bits, and by up to 6.1e8
// otherwise.
constexpr int settling_period(int bits) {
  return bits < 3 ? 8 : 4;
}
// held_weights() replaces a weight by the previous weight if the two weights differ by less than this factor.
// The replacement adds up to .3 % to the error and saves a multiplication of all costs in most steps.
constexpr float kLikeWeights = 1.2F;

constexpr double kLargestSum = 24000;    // largest sum s in 16 bits, with room for the largest levels
constexpr double kMostFeedback = 65000;  // largest sum of |g| in a step, so x + g.s fits in 32 bits

// Bounds the sum of errors of a row [d] whose root mean square is 1. Large errors come from values beyond the
// largest level L. If n values are sqrt(d / n) and all other values are 0, the errors add up to n (sqrt(d /
// n) - L). That is at most d / (4 L).
double largest_sum(std::size_t d, const TrellisTable& table) {
  double largest = 0;
  for (const std::int8_t level : table.levels)
    largest = std::max(largest, std::abs(level * double{table.scale}));
  return static_cast<double>(d) / (4 * largest);
}

double largest_along(const ErrorMetric& metric, int direction) {
  double largest = 0;
  for (const FeedbackStep& step : metric.steps())
    largest = std::max(largest, std::abs(static_cast<double>(step.directions[direction])));
  return largest;
}

std::vector<float> held_weights(const ErrorMetric& metric) {
  std::vector<float> weights;
  for (const FeedbackStep& step : metric.steps()) {
    const bool like = !weights.empty() && step.weight < weights.back() * kLikeWeights &&
                      weights.back() < step.weight * kLikeWeights;
    weights.push_back(like ? weights.back() : step.weight);
  }
  return weights;
}

std::int16_t word(double x) {
  return static_cast<std::int16_t>(std::clamp(std::nearbyint(x), -32767.0, 32767.0));
}

}  // namespace

ShapedFilter::ShapedFilter(const ErrorMetric& metric, const TrellisTable& table)
    : level_shift(kLevelShift[table.bits]) {
  const std::size_t n = metric.steps().size();
  // A row of root mean square 1 may contain a value of sqrt(n).
  while (std::ldexp(std::sqrt(static_cast<double>(n)), level_shift) > kMostValue * double{table.scale})
    --level_shift;
  units = std::ldexp(1.0F, level_shift) / table.scale;
  double unit[kMetricRank];  // unit[r]: the unit of sum r, in units of errors
  const double most = largest_sum(n, table) * units;
  for (int r = 0; r < kMetricRank; ++r)
    unit[r] = largest_along(metric, r) * std::max(32768.0 / 32767, most / kLargestSum);
  const std::vector<float> weights = held_weights(metric);
  steps.resize(n);
  for (std::size_t i = 0; i < n; ++i) {
    const FeedbackStep& from = metric.steps()[i];
    ShapedStep& step = steps[i];
    double feedback[kMetricRank], sum = 0;
    for (int r = 0; r < kMetricRank; ++r) {
      feedback[r] = from.feedback[r] * unit[r] * (1 << kTargetShift);
      sum += std::abs(feedback[r]);
    }
    const double share = std::min(1.0, kMostFeedback / sum);
    for (int r = 0; r < kMetricRank; ++r) {
      step.feedback[r] = word(feedback[r] * share);
      step.directions[r] = unit[r] > 0 ? word(from.directions[r] / unit[r] * 32768) : std::int16_t{0};
    }
    step.fade = i + 1 < n ? weights[i] / weights[i + 1] : 1;
    step.limit = static_cast<std::int32_t>(kCostLimit / std::max(1.0, static_cast<double>(step.fade)));
    step.settles = i % settling_period(table.bits) == 0 || step.fade != 1;
  }
}

}  // namespace kvant
