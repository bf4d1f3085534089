#include "format/lloyd_max.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace kvant {
namespace {

// Holds positive levels and the mean squared error from Max (1960), table I.
struct MaxRow {
  int bits;
  std::vector<double> positive;
  double error;
  // `precision` is the allowed difference from the table. For 5 bits, the table's outer levels are wrong in
  // the third digit after the point.
  double precision;
};
const std::vector<MaxRow>& max_table() {
  static const std::vector<MaxRow> table = {
      {1, {0.7980}, 0.3634, 3e-4},
      {2, {0.4528, 1.510}, 0.1175, 5e-4},
      {3, {0.2451, 0.7560, 1.344, 2.152}, 0.03454, 5e-4},
      {4, {0.1284, 0.3881, 0.6568, 0.9424, 1.256, 1.618, 2.069, 2.733}, 0.009497, 6e-4},
      {5,
       {0.06590, 0.1981, 0.3314, 0.4668, 0.6050, 0.7473, 0.8947, 1.049, 1.212, 1.387, 1.577, 1.788, 2.029,
        2.319, 2.692, 3.263},
       0.002499,
       3e-3},
  };
  return table;
}

TEST(LloydMax, AgreesWithMaxsTable) {
  for (const MaxRow& row : max_table()) {
    const std::vector<double> levels = lloyd_max_levels(row.bits);
    const std::size_t n = row.positive.size();
    ASSERT_EQ(levels.size(), 2 * n);
    for (std::size_t i = 0; i < n; ++i) {
      EXPECT_NEAR(levels[n + i], row.positive[i], row.precision) << row.bits << " bits";
      EXPECT_EQ(levels[n - 1 - i], -levels[n + i]);
    }
  }
}

TEST(LloydMax, LeavesMaxsError) {
  for (const MaxRow& row : max_table()) {
    const std::vector<double> levels = lloyd_max_levels(row.bits);
    double error = 0;
    constexpr double kStep = 1e-3;
    for (int i = 0; i * kStep < 16; ++i) {
      const double x = -8 + i * kStep;
      double best = 1e9;
      for (const double level : levels) best = std::min(best, std::fabs(x - level));
      error += kStep * best * best * std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
    }
    EXPECT_NEAR(error, row.error, 2e-4 * row.error + 1e-5) << row.bits << " bits";
  }
}

// Checks the two conditions of an optimal quantizer by numerical integration.
TEST(LloydMax, PutsEachLevelAtTheMeanOfItsCell) {
  const std::vector<double> levels = lloyd_max_levels(5);
  for (std::size_t i = 0; i < levels.size(); ++i) {
    const double low = i == 0 ? -9 : (levels[i - 1] + levels[i]) / 2;
    const double high = i + 1 == levels.size() ? 9 : (levels[i] + levels[i + 1]) / 2;
    constexpr int kSteps = 20000;
    double mass = 0;
    double moment = 0;
    for (int step = 0; step < kSteps; ++step) {
      const double x = low + (high - low) * (step + 0.5) / kSteps;
      mass += std::exp(-x * x / 2);
      moment += x * std::exp(-x * x / 2);
    }
    EXPECT_NEAR(levels[i], moment / mass, 1e-6) << i;
  }
}

}  // namespace
}  // namespace kvant
