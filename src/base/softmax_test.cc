#include "base/softmax.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace kvant {
namespace {

TEST(ExpRow, IsWithinTwoTenMillionthsOfExpAndSumsUp) {
  for (const int n : {1, 7, 16, 100, 128}) {
    std::vector<float> x(n);
    for (int i = 0; i < n; ++i) x[i] = 5.0F - 0.9F * static_cast<float>(i) * (i % 3 == 0 ? 1.0F : 0.013F);
    std::vector<double> expected(n);
    double sum = 0;
    for (int i = 0; i < n; ++i) sum += expected[i] = std::exp(static_cast<double>(x[i]) - 5.0);
    EXPECT_NEAR(exp_row(x.data(), n, 5.0F) / sum, 1, 1e-6);
    for (int i = 0; i < n; ++i) {
      if (expected[i] < 1e-37) continue;
      EXPECT_NEAR(x[i] / expected[i], 1, 3e-7 * (1 + std::abs(std::log(expected[i])))) << i;
    }
  }
}

TEST(ExpRow, GivesZeroForMaskedAndFarScores) {
  std::vector<float> x(33, -HUGE_VALF);
  x[5] = 0;
  x[20] = -1e6F;
  EXPECT_EQ(exp_row(x.data(), 33, 0.0F), 1.0F);
  EXPECT_EQ(x[0], 0.0F);
  EXPECT_EQ(x[20], 0.0F);
  EXPECT_EQ(x[5], 1.0F);
}

TEST(MaxRow, FindsTheLargestAnywhere) {
  for (int n = 1; n < 70; ++n) {
    for (int at = 0; at < n; ++at) {
      std::vector<float> x(n, -HUGE_VALF);
      x[at] = -3;
      ASSERT_EQ(max_row(x.data(), n), -3.0F);
    }
  }
}

}  // namespace
}  // namespace kvant
