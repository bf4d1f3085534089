#include "format/lloyd_max.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace kvant {
namespace {

double density(double x) {
  return std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
}

// Returns the probability of values above x.
double upper_tail(double x) {
  return std::erfc(x / std::numbers::sqrt2) / 2;
}

// Returns the mean of N(0, 1) between low and high. Requires 0 <= low < high <= infinity.
double mean_between(double low, double high) {
  return (density(low) - density(high)) / (upper_tail(low) - upper_tail(high));
}

// Does one step of Lloyd's iteration on the positive levels and returns the largest move.
double improve(std::vector<double>& positive) {
  double moved = 0;
  double low = 0;  // By symmetry a boundary lies at 0.
  for (std::size_t i = 0; i < positive.size(); ++i) {
    const double high = i + 1 < positive.size() ? (positive[i] + positive[i + 1]) / 2 : HUGE_VAL;
    const double level = mean_between(low, high);
    moved = std::max(moved, std::fabs(level - positive[i]));
    positive[i] = level;
    low = high;
  }
  return moved;
}

}  // namespace

std::vector<double> lloyd_max_levels(int bits) {
  KVANT_CHECK(bits >= 1 && bits <= 6, "Lloyd-Max levels of 1 to 6 bits");
  const int n = 1 << (bits - 1);
  std::vector<double> positive(n);
  for (int i = 0; i < n; ++i) positive[i] = (i + 0.5) * 3 / n;
  constexpr double kStill = 1e-12;
  constexpr int kMaxSteps = 100'000;  // 6 bits take about 10,000 steps.
  for (int step = 0; step < kMaxSteps && improve(positive) > kStill; ++step) {
  }
  std::vector<double> levels(positive.rbegin(), positive.rend());
  for (double& level : levels) level = -level;
  levels.insert(levels.end(), positive.begin(), positive.end());
  return levels;
}

}  // namespace kvant
