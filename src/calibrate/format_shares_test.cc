#include "calibrate/format_shares.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kvant {
namespace {

Geometry two_layers_of_two_heads() {
  Geometry g;
  g.n_layers = 2;
  g.n_heads = g.n_kv_heads = 2;
  g.head_dim = 64;
  return g;
}

Sensitivities shared(const Sensitivities& sensitivities) {
  const auto recipe = parse_recipe("k=hadamard:tcq2,v=tcq2,sink=4,budget=2.6,ladder=tcq1+tcq2+tcq3");
  EXPECT_TRUE(recipe.ok());
  return shared_over_formats(sensitivities, two_layers_of_two_heads(), *recipe);
}

// Returns sensitivities with these values for K, by layer and head. All values for V, which alternate with
// those for K, are equal.
Sensitivities of_keys(const std::vector<std::vector<float>>& places) {
  Sensitivities all;
  for (const std::vector<float>& place : places) {
    all.push_back(place);
    all.push_back({3, 2, 1});
  }
  return all;
}

TEST(FormatShares, LeaveWhatFormatsAgreeOn) {
  const Sensitivities same = of_keys({{50, 8, 2}, {100, 16, 4}, {25, 4, 1}, {75, 12, 3}});
  const Sensitivities result = shared(same);
  for (std::size_t p = 0; p < same.size(); ++p)
    for (std::size_t f = 0; f < 3; ++f) EXPECT_NEAR(result[p][f], same[p][f], 1e-4) << p << f;
}

TEST(FormatShares, AreGeometricMeansOfTheFormatsFromTwoBitsOn) {
  // With 2 and 3 bits, the first place has 1/4 and 1/16 of the sums. The other places share the rest equally.
  const Sensitivities result = shared(of_keys({{1, 4, 1}, {1, 4, 5}, {1, 4, 5}, {1, 4, 5}}));
  const double low = std::sqrt(1.0 / 4 * 1 / 16), high = std::sqrt(1.0 / 4 * 5 / 16);
  EXPECT_NEAR(result[0][1], 16 * low / (low + 3 * high), 1e-5);
  EXPECT_NEAR(result[0][2], 16 * low / (low + 3 * high), 1e-5);
  EXPECT_NEAR(result[2][1], 16 * high / (low + 3 * high), 1e-5);
  EXPECT_EQ(result[1], (std::vector<float>{3, 2, 1}));
}

TEST(FormatShares, KeepTheSumOfEachLayerInFewerBits) {
  const Sensitivities result = shared(of_keys({{7, 1, 1}, {1, 3, 3}, {1, 2, 2}, {2, 2, 2}}));
  EXPECT_NEAR(result[0][0], 8 * 0.25, 1e-5);
  EXPECT_NEAR(result[2][0], 8 * 0.75, 1e-5);
  EXPECT_NEAR(result[4][0], 1.5, 1e-5);
  EXPECT_NEAR(result[6][0], 1.5, 1e-5);
}

TEST(FormatShares, LeavePlacesThatCostNothing) {
  const Sensitivities result = shared(of_keys({{0, 0, 0}, {1, 3, 3}, {0, 0, 0}, {0, 0, 0}}));
  EXPECT_EQ(result[0], (std::vector<float>{0, 0, 0}));
  EXPECT_EQ(result[2], (std::vector<float>{1, 3, 3}));
}

}  // namespace
}  // namespace kvant
