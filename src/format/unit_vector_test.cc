#include "format/unit_vector.h"

#include <gtest/gtest.h>

#include <cmath>

#include "format/lloyd_max.h"

namespace kvant {
namespace {

TEST(RandomRotation, HasOrthonormalRows) {
  for (const int n : {1, 2, 6, 64, 256}) {
    const std::vector<float> m = random_rotation(n, 1);
    for (int r = 0; r < n; ++r) {
      for (int s = 0; s <= r; ++s) {
        double product = 0;
        for (int i = 0; i < n; ++i) product += double{m[r * n + i]} * m[s * n + i];
        ASSERT_NEAR(product, r == s ? 1 : 0, 1e-6) << n;
      }
    }
  }
}

// After rotation a single channel looks like a normal vector, because the mean fourth power of its numbers is
// 3 / (n (n + 2)). A Hadamard matrix would give 1 / n^2.
TEST(RandomRotation, SpreadsAChannelLikeANormalVector) {
  constexpr int kDim = 256;
  const std::vector<float> m = random_rotation(kDim, 1);
  double fourth = 0;
  for (const float x : m) fourth += std::pow(double{x}, 4);
  EXPECT_NEAR(fourth / kDim / kDim * kDim * (kDim + 2), 3, 0.1);
}

// By Archimedes' theorem a coordinate on a sphere in three dimensions is uniform, and so are its best levels.
TEST(UnitVectorLevels, AreUniformInThreeDimensions) {
  for (const int bits : {1, 2, 3, 4}) {
    const std::vector<double> levels = unit_vector_levels(3, bits);
    const int n = 1 << bits;
    ASSERT_EQ(static_cast<int>(levels.size()), n);
    for (int i = 0; i < n; ++i) EXPECT_NEAR(levels[i], (2.0 * i + 1) / n - 1, 1e-5);
  }
}

// On a circle the mean of |cos| is 2 / pi.
TEST(UnitVectorLevels, AreTheMeansOfHalfACircleInTwoDimensions) {
  const std::vector<double> levels = unit_vector_levels(2, 1);
  EXPECT_NEAR(levels[1], 2 / std::acos(-1.0), 1e-6);
  EXPECT_EQ(levels[0], -levels[1]);
}

TEST(UnitVectorLevels, ApproachThoseOfTheNormalDistribution) {
  constexpr int kDim = 4096;
  for (const int bits : {1, 2, 4, 6}) {
    const std::vector<double> levels = unit_vector_levels(kDim, bits), normal = lloyd_max_levels(bits);
    for (std::size_t i = 0; i < levels.size(); ++i)
      EXPECT_NEAR(levels[i] * std::sqrt(kDim), normal[i], 0.01) << bits << " bits, level " << i;
  }
}

TEST(UnitVectorLevels, AscendAndStayWithinTheSphere) {
  for (const int n : {2, 4, 10, 64, 512}) {
    const std::vector<double> levels = unit_vector_levels(n, 8);
    for (std::size_t i = 1; i < levels.size(); ++i) ASSERT_GT(levels[i], levels[i - 1]) << n;
    EXPECT_LT(levels.back(), 1);
  }
}

}  // namespace
}  // namespace kvant
