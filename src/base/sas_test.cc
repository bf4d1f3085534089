#include "base/sas.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kvant {
namespace {

TEST(Sas, IsWithinAThousandthOfExpDownToItsFloorAndZeroBelow) {
  for (int i = 0; i >= static_cast<int>(100 * kSasFloor); --i) {
    const float x = 0.01F * static_cast<float>(i);
    EXPECT_NEAR(sas_exp(x) / std::exp(static_cast<double>(x)), 1, 1.04e-3) << x;
  }
  EXPECT_EQ(sas_exp(kSasFloor - 0.001F), 0.0F);
  EXPECT_EQ(sas_exp(-HUGE_VALF), 0.0F);
}

TEST(Sas, MatchesAHandWorkedValue) {
  // For x = -2.5, the expected value is e^-2 (-0.1025 / 8 + 0.4626 / 4 - 0.9922 / 2 + 0.9996) = 0.1353353 *
  // 0.6063375 = 0.0820589.
  EXPECT_NEAR(sas_exp(-2.5F), 0.0820589F, 1e-6);
}

TEST(SasRow, SumsUpRelativeToTheMaximum) {
  float x[3] = {1.0F, -1.5F, -9.0F};
  const float sum = sas_row(x, 3, 1.0F);
  EXPECT_NEAR(x[0], 0.9996F, 1e-6);
  EXPECT_NEAR(x[1], 0.0820589F, 1e-6);
  EXPECT_EQ(x[2], 0.0F);
  EXPECT_NEAR(sum, 0.9996F + 0.0820589F, 1e-6);
}

}  // namespace
}  // namespace kvant
