#include <algorithm>

#include "format/test_pages.h"

namespace kvant {
namespace {

// Returns every e4m3 number by its definition: bias 7, no infinities, no NaN.
std::vector<double> e4m3_numbers() {
  std::vector<double> numbers;
  for (int code = 0; code < 0x7f; ++code) {
    const int exponent = code >> 3, mantissa = code & 7;
    const double x = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    numbers.insert(numbers.end(), {x, -x});
  }
  return numbers;
}

TEST(Fp8Unscaled, TakesEightBits) {
  for (const int d : kTestHeadDims) EXPECT_DOUBLE_EQ(find_format("fp8-s1")->bits(d), 8);
}

TEST(Fp8Unscaled, StoresTheNearestE4m3NumberOfTheValueItself) {
  const std::vector<double> numbers = e4m3_numbers();
  for (const int d : kTestHeadDims) {
    const TestFormat test("fp8-s1", d);
    std::vector<float> values = key_like_values(d, 1);
    // Every third value of token 0 becomes a denormal code.
    for (int i = 0; i < d; ++i) values[i] *= i % 3 == 0 ? 1e-3F : 1.0F;
    const std::vector<float> decoded = test.decode(test.encode(values));
    for (std::size_t i = 0; i < values.size(); ++i) {
      double nearest = 1e300;
      for (const double x : numbers) nearest = std::min(nearest, std::fabs(x - values[i]));
      ASSERT_EQ(std::fabs(double{decoded[i]} - values[i]), nearest) << values[i];
      ASSERT_NE(std::ranges::find(numbers, double{decoded[i]}), numbers.end()) << values[i];
    }
  }
}

TEST(Fp8Unscaled, SaturatesBeyondTheLargestNumber) {
  std::vector<float> values(kPageTokens * 64, 0.0F);
  const float exact[] = {448, 449, 480, 1e4F, -465, -3e38F}, stored[] = {448, 448, 448, 448, -448, -448};
  std::copy(std::begin(exact), std::end(exact), values.begin());
  const TestFormat test("fp8-s1", 64);
  const std::vector<float> decoded = test.decode(test.encode(values));
  for (std::size_t i = 0; i < std::size(stored); ++i) EXPECT_EQ(decoded[i], stored[i]) << exact[i];
}

}  // namespace
}  // namespace kvant
