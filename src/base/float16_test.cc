#include "base/float16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace kvant {
namespace {

// Decodes binary16 by its definition in IEEE 754.
double f16_value(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 31) return mantissa == 0 ? sign * HUGE_VAL : NAN;
  return sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
}

TEST(Float16, WidensEveryBitPatternExactly) {
  for (int bits = 0; bits < 65536; ++bits) {
    const double expected = f16_value(static_cast<std::uint16_t>(bits));
    const float widened = float_from_f16(static_cast<std::uint16_t>(bits));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(widened)) << bits;
    } else {
      ASSERT_EQ(widened, expected) << bits;
      ASSERT_EQ(std::signbit(widened), std::signbit(expected)) << bits;
      ASSERT_EQ(f16_from_float(widened), bits);
    }
  }
}

TEST(Float16, RoundsToNearestEvenBetweenEveryTwoNeighbours) {
  for (int bits = 0; bits < 0x7bff; ++bits) {
    const auto low = static_cast<std::uint16_t>(bits);
    const auto high = static_cast<std::uint16_t>(bits + 1);
    const auto middle = static_cast<float>((f16_value(low) + f16_value(high)) / 2);
    const std::uint16_t even = bits % 2 == 0 ? low : high;
    ASSERT_EQ(f16_from_float(middle), even) << bits;
    ASSERT_EQ(f16_from_float(-middle), even | 0x8000) << bits;
    ASSERT_EQ(f16_from_float(std::nextafter(middle, 0.0F)), low) << bits;
    ASSERT_EQ(f16_from_float(std::nextafter(middle, 1e9F)), high) << bits;
  }
}

TEST(Float16, OverflowsToInfinityUnlessSaturated) {
  EXPECT_EQ(f16_from_float(65519.996F), 0x7bff);
  EXPECT_EQ(f16_from_float(65520.0F), 0x7c00);
  EXPECT_EQ(f16_from_float(-1e30F), 0xfc00);
  EXPECT_EQ(f16_from_float(std::numeric_limits<float>::infinity()), 0x7c00);
  EXPECT_TRUE(std::isnan(f16_value(f16_from_float(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_EQ(f16_from_float_saturated(65520.0F), 0x7bff);
  EXPECT_EQ(f16_from_float_saturated(-1e30F), 0xfbff);
  EXPECT_EQ(f16_from_float(1e-42F), 0);
}

TEST(Bfloat16, RoundsToNearestEvenAndKeepsNan) {
  EXPECT_EQ(bf16_from_float(1.0F), 0x3f80);
  EXPECT_EQ(bf16_from_float(0x1.01p0F), 0x3f80);      // halfway, the even neighbour is below
  EXPECT_EQ(bf16_from_float(0x1.03p0F), 0x3f82);      // halfway, the even neighbour is above
  EXPECT_EQ(bf16_from_float(0x1.010002p0F), 0x3f81);  // just above halfway
  EXPECT_EQ(bf16_from_float(-0x1.03p0F), 0xbf82);
  EXPECT_EQ(bf16_from_float(std::numeric_limits<float>::infinity()), 0x7f80);
  EXPECT_TRUE(std::isnan(float_from_bf16(bf16_from_float(std::numeric_limits<float>::quiet_NaN()))));
  for (int bits = 0; bits < 0x7f80; ++bits) {
    ASSERT_EQ(bf16_from_float(float_from_bf16(static_cast<std::uint16_t>(bits))), bits);
  }
}

TEST(Float16, ConvertsRowsOfAnyLengthLikeSingleValues) {
  std::mt19937 random(1);
  std::uniform_int_distribution<std::uint32_t> any_bits;
  for (const std::size_t n : {0, 1, 7, 16, 31, 300}) {
    std::vector<float> values(n);
    for (float& value : values) value = std::bit_cast<float>(any_bits(random));
    std::vector<std::uint16_t> f16(n + 1, 0xabcd);
    std::vector<std::uint16_t> bf16(n + 1, 0xabcd);
    f16_row_from_float(values.data(), f16.data(), n);
    bf16_row_from_float(values.data(), bf16.data(), n);
    std::vector<float> from_f16(n + 1, 42.0F);
    std::vector<float> from_bf16(n + 1, 42.0F);
    float_row_from_f16(f16.data(), from_f16.data(), n);
    float_row_from_bf16(bf16.data(), from_bf16.data(), n);
    for (std::size_t i = 0; i < n; ++i) {
      EXPECT_EQ(f16[i], f16_from_float(values[i]));
      EXPECT_EQ(bf16[i], bf16_from_float(values[i]));
      if (std::isnan(values[i])) continue;
      EXPECT_EQ(from_f16[i], float_from_f16(f16[i]));
      EXPECT_EQ(from_bf16[i], float_from_bf16(bf16[i]));
    }
    EXPECT_EQ(f16[n], 0xabcd);
    EXPECT_EQ(bf16[n], 0xabcd);
    EXPECT_EQ(from_f16[n], 42.0F);
    EXPECT_EQ(from_bf16[n], 42.0F);
  }
}

}  // namespace
}  // namespace kvant
