#include "calibrate/scored_predictions.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace kvant {
namespace {

TEST(ScoredPredictions, AreTheSecondHalfOrWhatLogitsHaveRoomFor) {
  EXPECT_EQ(n_scored_predictions(1024, 32000), 512);
  EXPECT_EQ(n_scored_predictions(4096, 1 << 18), 256);  // 1 MiB per prediction
  EXPECT_EQ(n_scored_predictions(1, 32000), 1);
}

// The divergence of p = (1/2, 1/2) and q = (3/4, 1/4) is (log 4/3) / 2. At the other position, both
// predictions agree.
TEST(ScoredPredictions, DivergeByTheMeanOfTheirPositions) {
  const auto log = [](double x) { return static_cast<float>(std::log(x)); };
  const std::vector<float> expected{log(0.5), log(0.5), 1, 2}, got{log(0.75), log(0.25), 1, 2};
  const auto divergence = mean_divergence(expected, got, /*n_vocab=*/2, /*n_threads=*/1);
  ASSERT_TRUE(divergence.ok());
  EXPECT_NEAR(*divergence, std::log(4.0 / 3) / 2 / 2, 1e-6);
}

}  // namespace
}  // namespace kvant
