#include "base/linear_correction.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvant {
namespace {

constexpr int kSize = 8;

// Errors of zero have the features 2 / D for any weights, so each token adds 2 / D of its V.
TEST(LinearCorrection, GrowsByTheSameAmountForTwoThousandPages) {
  constexpr int kPages = 2000;
  const std::vector<float> adapter(feature_map_weights(kSize), 0.3F);
  const std::vector<float> errors(static_cast<std::size_t>(kPageTokens) * kSize, 0.0F);
  std::vector<float> values;
  for (int t = 0; t < kPageTokens; ++t)
    for (int c = 0; c < kSize; ++c) values.push_back(0.1F * static_cast<float>(c + 1));
  TokenMask left_out;
  left_out.set(5);
  std::vector<float> sums(correction_sums(kSize));
  ASSERT_EQ(sums.size(), static_cast<std::size_t>(kCorrectionFeatures) * (kSize + 1));
  for (int page = 0; page < kPages; ++page) {
    add_to_sums(adapter.data(), {errors.data(), kPageTokens, kSize}, {values.data(), kPageTokens, kSize},
                left_out, sums.data());
  }
  const double tokens = 127.0 * kPages;
  const double feature = 2.0 / kCorrectionFeatures;
  const float* const masses = sums.data() + std::ptrdiff_t{kCorrectionFeatures} * kSize;
  for (int f = 0; f < kCorrectionFeatures; ++f) {
    for (int c = 0; c < kSize; ++c) {
      const double expected = tokens * feature * 0.1 * (c + 1);
      ASSERT_NEAR(sums[f * kSize + c], expected, 1e-4 * expected) << "feature " << f << ", channel " << c;
    }
    ASSERT_NEAR(masses[f], tokens * feature, 1e-4 * tokens * feature) << "feature " << f;
  }
  // A uniform phi of sum 2 gives phi S and phi z in closed form.
  const std::vector<float> phi(kCorrectionFeatures, static_cast<float>(feature));
  std::vector<float> out(kSize);
  const float mass = multiply_by_sums(sums.data(), phi.data(), kSize, out.data());
  EXPECT_NEAR(mass, 2 * tokens * feature, 1e-3 * tokens * feature);
  EXPECT_NEAR(out[3], mass * 0.4, 1e-4 * mass);
}

}  // namespace
}  // namespace kvant
