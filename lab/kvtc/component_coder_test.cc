#include "kvtc/component_coder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

namespace kvant {
namespace {

std::vector<float> normal_values(int n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& x : values) x = normal(random);
  return values;
}

TEST(ComponentGroups, AreReadFromText) {
  const auto groups = parse_component_groups("2x8 64x4\n1024x2 3x0 ");
  ASSERT_TRUE(groups.ok());
  ASSERT_EQ(groups->size(), 4U);
  EXPECT_EQ((*groups)[1].size, 64);
  EXPECT_EQ((*groups)[1].bits, 4);
  for (const char* text : {"0x4", "3x5", "3", "x4", "3x", "3x4x", "-3x4", "a"}) {
    const auto refused = parse_component_groups(text);
    ASSERT_FALSE(refused.ok()) << text;
    EXPECT_NE(refused.error().message.find(text), std::string::npos);
  }
}

TEST(ComponentCoder, CountsPlainBitsWithParameters) {
  const ComponentCoder coder({{1, 8}, {16, 4}, {5, 0}, {64, 2}});
  EXPECT_EQ(coder.n_components(), 86);
  EXPECT_EQ(coder.plain_bits(), 8 + 32 + 64 + 32 + 128 + 32);
}

// With 2 and 4 bits, each value must become the nearest of 2^bits numbers that are spread evenly over the
// range of the value's group.
TEST(ComponentCoder, GivesTheNearestOfEvenlySpreadNumbers) {
  for (const int bits : {2, 4}) {
    ComponentCoder coder({{16, bits}, {4, 0}, {48, bits}});
    const std::vector<float> values = normal_values(68, 7);
    std::vector<float> coded = values;
    coder.code(coded.data());
    for (const auto& [first, end] : {std::pair{0, 16}, std::pair{20, 68}}) {
      const auto [least, most] = std::minmax_element(values.begin() + first, values.begin() + end);
      const double step = (double{*most} - *least) / ((1 << bits) - 1);
      for (int i = first; i < end; ++i) {
        double nearest = 1e9;
        for (int code = 0; code < 1 << bits; ++code)
          if (const double at = *least + code * step;
              std::abs(at - values[i]) < std::abs(nearest - values[i]))
            nearest = at;
        // The tolerance covers the rounding of the parameters to f16.
        EXPECT_NEAR(coded[i], nearest, 0.003 * (*most - *least)) << i;
      }
    }
    for (int i = 16; i < 20; ++i) EXPECT_EQ(coded[i], 0);
  }
}

// With 8 bits, each value must become the nearest number of E4M3. The test enumerates all these numbers.
TEST(ComponentCoder, GivesTheNearestNumberOfE4m3) {
  std::vector<double> numbers;
  for (int exponent = 0; exponent < 16; ++exponent)
    for (int mantissa = 0; mantissa < 8; ++mantissa) {
      const double x = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
      if (x <= 448) numbers.insert(numbers.end(), {x, -x});
    }
  ComponentCoder coder({{64, 8}});
  std::vector<float> values = normal_values(64, 3);
  // The values -448 and 448 make the shift 0 and the scale 1.
  values[0] = -448;
  values[1] = 448;
  for (int i = 2; i < 64; ++i) values[i] = std::clamp(std::ldexp(values[i], i % 18 - 9), -448.0F, 448.0F);
  std::vector<float> coded = values;
  coder.code(coded.data());
  for (int i = 0; i < 64; ++i) {
    const double nearest = *std::ranges::min_element(
        numbers, [&](double a, double b) { return std::abs(a - values[i]) < std::abs(b - values[i]); });
    EXPECT_NEAR(std::abs(coded[i] - values[i]), std::abs(nearest - values[i]), 1e-6) << values[i];
  }
}

TEST(ComponentCoder, KeepsAGroupOfEqualValues) {
  ComponentCoder coder({{16, 2}, {1, 8}, {2, 4}});
  std::vector<float> values(19, 0.5F);
  coder.code(values.data());
  for (const float x : values) EXPECT_EQ(x, 0.5F);
}

// The expected entropy is computed from decoded values. Two tokens have one symbol if their decoded values
// are equal.
TEST(ComponentCoder, CountsTheEntropyOfEachComponent) {
  constexpr int kTokens = 500;
  ComponentCoder coder({{4, 2}});
  std::vector<std::map<float, int>> seen(4);
  for (int t = 0; t < kTokens; ++t) {
    std::vector<float> x = normal_values(4, t);
    // The values -4 and 4 make shift and scale equal for all tokens.
    x[0] = -4;
    x[1] = 4;
    for (float& value : x) value = std::clamp(value, -4.0F, 4.0F);
    coder.code(x.data());
    for (int i = 0; i < 4; ++i) ++seen[i][x[i]];
  }
  double bits = 0;
  for (const auto& component : seen)
    for (const auto& [value, n] : component) bits -= n * std::log2(static_cast<double>(n) / kTokens);
  EXPECT_GT(bits, kTokens);
  EXPECT_NEAR(coder.ideal_bits(), bits, 1e-6 * bits);
}

}  // namespace
}  // namespace kvant
