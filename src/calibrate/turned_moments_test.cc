#include "calibrate/turned_moments.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <numeric>
#include <random>

namespace kvant::turned_moments_test {
namespace {

constexpr int kDim = 7;

// The turns rotate two pairs of channels. Three channels do not rotate.
const std::vector<ChannelTurn> kTurns = {{0, 5, std::uint64_t{1} << 61}, {3, 1, 0x0123456789abcdef}};

std::vector<double> some_moments() {
  std::mt19937 random(5);
  std::normal_distribution<double> normal;
  std::vector<double> m(std::size_t{kDim} * kDim, 0.0);
  for (int row = 0; row < 3; ++row) {
    std::vector<double> q(kDim);
    for (double& x : q) x = normal(random);
    for (int i = 0; i < kDim; ++i)
      for (int j = 0; j < kDim; ++j) m[static_cast<std::size_t>(i) * kDim + j] += q[i] * q[j];
  }
  return m;
}

// Returns R(p) [kDim, kDim] by the definition of RoPE.
std::vector<double> turn_matrix(int p) {
  std::vector<double> r(std::size_t{kDim} * kDim, 0.0);
  const auto at = [&](int i, int j) -> double& { return r[static_cast<std::size_t>(i) * kDim + j]; };
  for (int i = 0; i < kDim; ++i) at(i, i) = 1;
  for (const ChannelTurn& turn : kTurns) {
    const double angle = p * std::ldexp(static_cast<double>(turn.step), -64) * 2 * std::numbers::pi;
    at(turn.first, turn.first) = at(turn.second, turn.second) = std::cos(angle);
    at(turn.first, turn.second) = -std::sin(angle);
    at(turn.second, turn.first) = std::sin(angle);
  }
  return r;
}

TEST(MeanTurn, IsTheMeanOverDistances) {
  const std::vector<double> m = some_moments();
  for (const int n : {1, 2, 8, 300}) {
    std::vector<double> expected(m.size(), 0.0), weights;
    for (int p = 0; p < n; ++p) weights.push_back(1 + p % 3);
    const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (int p = 0; p < n; ++p) {
      const std::vector<double> r = turn_matrix(p);
      for (int i = 0; i < kDim; ++i)
        for (int j = 0; j < kDim; ++j)
          for (int k = 0; k < kDim; ++k)
            for (int l = 0; l < kDim; ++l)
              expected[static_cast<std::size_t>(i) * kDim + j] +=
                  r[static_cast<std::size_t>(i) * kDim + k] * m[static_cast<std::size_t>(k) * kDim + l] *
                  r[static_cast<std::size_t>(j) * kDim + l] * weights[p] / all;
    }
    const std::vector<double> found = MeanTurn(kTurns, kDim, weights)(m);
    for (std::size_t i = 0; i < m.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-9) << n;
  }
}

TEST(MeanTurn, LeavesMomentsAsTheyAreWhereNothingTurns) {
  const std::vector<double> m = some_moments();
  const std::vector<double> found = MeanTurn({}, kDim, reading_weights(1000))(m);
  for (std::size_t i = 0; i < m.size(); ++i) EXPECT_NEAR(found[i], m[i], 1e-12);
}

TEST(ReadingWeights, BeginBehindThePageAndFallWithTheDistance) {
  const std::vector<double> weights = reading_weights(1000);
  ASSERT_EQ(weights.size(), 1000U);
  for (int x = 0; x < 64; ++x) EXPECT_EQ(weights[x], 0);
  for (int x = 64; x < 1000; ++x) EXPECT_NEAR(weights[x] * std::sqrt(x) * x, 1000 - x, 1e-9);
  EXPECT_GT(reading_weights(10).back(), 0);  // the context is shorter than a page
}

}  // namespace
}  // namespace kvant::turned_moments_test
