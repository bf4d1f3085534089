#include <algorithm>

#include "format/test_pages.h"

namespace kvant {
namespace {

// Decodes e4m3 by its definition, with a bias of 7 and no infinities.
double e4m3(int code) {
  const int exponent = (code >> 3) & 15;
  const int mantissa = code & 7;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

// Returns the distance from x to the nearest e4m3 number.
double nearest_distance(double x) {
  double best = 1e300;
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7f) != 0x7f) best = std::min(best, std::fabs(e4m3(code) - x));
  }
  return best;
}

float scale_of(const std::vector<std::byte>& page, int token, int d) {
  float scale;
  std::memcpy(&scale, page.data() + kPageTokens * d + 4 * token, 4);
  return scale;
}

TEST(Fp8, TakesEightBitsAndAScaleForEachToken) {
  for (const int d : kTestHeadDims) EXPECT_DOUBLE_EQ(find_format("fp8")->bits(d), 8 + 32.0 / d);
}

TEST(Fp8, StoresTheNearestE4m3NumberOfTheScaledToken) {
  for (const int d : kTestHeadDims) {
    const TestFormat test("fp8", d);
    std::vector<float> values = key_like_values(d, 1);
    // Every third value of token 0 becomes a denormal code.
    for (int i = 0; i < d; ++i) values[i] *= i % 3 == 0 ? 1e-4F : 1.0F;
    const std::vector<std::byte> page = test.encode(values);
    const std::vector<float> decoded = test.decode(page);
    for (int token = 0; token < kPageTokens; ++token) {
      double largest = 0;
      for (int i = 0; i < d; ++i) largest = std::max(largest, std::fabs(double{values[token * d + i]}));
      const double scale = scale_of(page, token, d);
      ASSERT_NEAR(scale, largest / 448, largest * 1e-9);
      for (int i = 0; i < d; ++i) {
        const std::size_t at = static_cast<std::size_t>(token) * d + i;
        const int code = std::to_integer<int>(page[at]);
        ASSERT_NEAR(decoded[at], e4m3(code) * scale, 1e-6 * std::fabs(decoded[at]));
        ASSERT_LE(std::fabs(e4m3(code) - values[at] / scale), nearest_distance(values[at] / scale) + 1e-4);
      }
    }
  }
}

TEST(Fp8, RoundsHalvesToEven) {
  std::vector<float> values(kPageTokens * 64, 0.0F);
  values[0] = 448;  // This value makes the scale 1.
  const float exact[] = {1.0625F, 1.1875F, -1.0625F, 0x1p-9F, 0x1.8p-9F, 0x1p-10F, 0x1.8p-10F, 17, 19, 432};
  const float rounded[] = {1.0F, 1.25F, -1.0F, 0x1p-9F, 0x1p-8F, 0, 0x1p-9F, 16, 20, 448};
  std::copy(std::begin(exact), std::end(exact), values.begin() + 1);
  const std::vector<float> decoded = TestFormat("fp8", 64).decode(TestFormat("fp8", 64).encode(values));
  for (std::size_t i = 0; i < std::size(rounded); ++i) EXPECT_EQ(decoded[i + 1], rounded[i]) << exact[i];
}

TEST(Fp8, KeepsZerosAndLargestMagnitudes) {
  for (const float largest : {1e-20F, 1e-3F, 1.0F, 3e10F, 3.4028e38F}) {
    std::vector<float> values(kPageTokens * 64, 0.0F);
    for (int token = 0; token < kPageTokens; ++token)
      values[token * 64 + token % 64] = token % 2 == 0 ? largest : -largest;
    const std::vector<float> decoded = TestFormat("fp8", 64).decode(TestFormat("fp8", 64).encode(values));
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_NEAR(decoded[i], values[i], std::fabs(values[i]) * 1e-3);
  }
}

}  // namespace
}  // namespace kvant
