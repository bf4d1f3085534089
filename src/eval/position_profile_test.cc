#include "eval/position_profile.h"

#include <gtest/gtest.h>

namespace kvant {
namespace {

TEST(DivergenceTail, EndsWithTheLargest) {
  PositionScores positions;
  // The values are 0 .. 100 in shuffled order.
  for (int i = 0; i <= 100; ++i) positions.kld.push_back((i * 37) % 101);
  const auto tail = divergence_tail(positions);
  EXPECT_EQ(tail.front().share, 1);
  EXPECT_EQ(tail.front().kld, 0);
  EXPECT_NEAR(tail[5].share, 0.1, 1e-12);
  EXPECT_NEAR(tail[5].kld, 90, 1e-9);
  EXPECT_NEAR(tail.back().share, 1.0 / 101, 1e-12);
  EXPECT_NEAR(tail.back().kld, 100 * (1 - 1.0 / 101), 1e-9);
  EXPECT_TRUE(divergence_tail({}).empty());
}

// Two chunks have the five positions 1 2 3 4 5 and 11 12 13 14 15. The two bins have two and three positions.
TEST(DivergenceDrift, AveragesTheSamePlacesOfAllChunks) {
  const PositionScores positions{{1, 2, 3, 4, 5, 11, 12, 13, 14, 15}, {1, 1, 1, 0, 0, 1, 0, 0, 0, 0}};
  const auto bins = divergence_drift(positions, 2, 2);
  ASSERT_EQ(bins.size(), 2U);
  EXPECT_EQ(bins[0].first, 0);
  EXPECT_EQ(bins[0].count, 2);
  EXPECT_EQ(bins[0].kld, (1 + 2 + 11 + 12) / 4.0);
  EXPECT_EQ(bins[0].top1, 0.75);
  EXPECT_EQ(bins[1].first, 2);
  EXPECT_EQ(bins[1].kld, (3 + 4 + 5 + 13 + 14 + 15) / 6.0);
}

}  // namespace
}  // namespace kvant
