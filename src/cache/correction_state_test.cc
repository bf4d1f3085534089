#include "cache/correction_state.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvant {
namespace {

constexpr int kSize = 8;

// Errors of zero have the features 2 / D for any weights, so each token adds 2 / D of its V.
TEST(CorrectionState, GrowsByTheSameAmountForTwoThousandPages) {
  constexpr int kPages = 2000;
  const std::vector<float> adapter(feature_map_weights(kSize), 0.3F);
  const std::vector<float> errors(static_cast<std::size_t>(kPageTokens) * kSize, 0.0F);
  std::vector<float> values;
  for (int t = 0; t < kPageTokens; ++t)
    for (int c = 0; c < kSize; ++c) values.push_back(0.1F * static_cast<float>(c + 1));
  TokenMask left_out;
  left_out.set(5);
  CorrectionState state;
  state.reserve(kSize);
  for (int page = 0; page < kPages; ++page) {
    state.add(adapter, {errors.data(), kPageTokens, kSize}, {values.data(), kPageTokens, kSize}, left_out);
  }
  const double tokens = 127.0 * kPages;
  const double feature = 2.0 / kCorrectionFeatures;
  ASSERT_EQ(state.sums().size(), static_cast<std::size_t>(kCorrectionFeatures) * (kSize + 1));
  for (int f = 0; f < kCorrectionFeatures; ++f) {
    const float* sums = state.sums().data() + static_cast<std::ptrdiff_t>(f) * (kSize + 1);
    for (int c = 0; c < kSize; ++c) {
      const double expected = tokens * feature * 0.1 * (c + 1);
      ASSERT_NEAR(sums[c], expected, 1e-4 * expected) << "feature " << f << ", channel " << c;
    }
    ASSERT_NEAR(sums[kSize], tokens * feature, 1e-4 * tokens * feature) << "feature " << f;
  }
  // A uniform phi of sum 2 gives phi S and phi P in closed form.
  const std::vector<float> phi(kCorrectionFeatures, static_cast<float>(feature));
  std::vector<float> out(kSize);
  const float mass = multiply_by_sums(state.sums_by_feature(), phi.data(), kSize, out.data());
  EXPECT_NEAR(mass, 2 * tokens * feature, 1e-3 * tokens * feature);
  EXPECT_NEAR(out[3], mass * 0.4, 1e-4 * mass);
  EXPECT_EQ(state.bytes(), kCorrectionFeatures * (kSize + 1) * 4);
}

}  // namespace
}  // namespace kvant
