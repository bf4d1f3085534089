#include "format/shaped_filter.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <random>
#include <vector>

namespace kvant {
namespace {

// The sums of the search must fit the integers of shaped_search.h for every metric.
TEST(ShapedFilter, LeavesRoomInTheSearchsIntegers) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const int n : {16, 64, 128, 512}) {
    for (const float strength : {0.0F, 1e-20F, 1.0F, 1e4F}) {
      std::vector<float> directions(static_cast<std::size_t>(n) * kMetricRank);
      for (float& v : directions) v = strength * normal(random);
      const ErrorMetric metric(directions);
      for (const TrellisTable& table : trellis_tables()) {
        const ShapedFilter filter(metric, table);
        ASSERT_EQ(filter.steps.size(), static_cast<std::size_t>(n));
        EXPECT_LE(std::sqrt(static_cast<double>(n)) * filter.units, kMostValue);
        for (const ShapedStep& step : filter.steps) {
          std::int64_t sum = std::int64_t{kMostValue} << kTargetShift;
          for (const int feedback : step.feedback) sum += std::int64_t{std::abs(feedback)} << 15;
          EXPECT_LT(sum, std::int64_t{1} << 31);
          EXPECT_LE(step.limit * static_cast<double>(step.fade), kCostLimit * 1.000001);
          EXPECT_TRUE(step.settles || step.fade == 1);
        }
      }
    }
  }
}

// Without directions there is no feedback, and all errors have the same weight.
TEST(ShapedFilter, FeedsNothingBackWithoutDirections) {
  const ShapedFilter filter(ErrorMetric(std::vector<float>(64 * kMetricRank, 0.0F)), trellis_tables()[1]);
  for (const ShapedStep& step : filter.steps) {
    for (int r = 0; r < kMetricRank; ++r) {
      EXPECT_EQ(step.feedback[r], 0);
      EXPECT_EQ(step.directions[r], 0);
    }
    EXPECT_EQ(step.fade, 1);
  }
}

}  // namespace
}  // namespace kvant
