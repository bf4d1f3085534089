#include <algorithm>

#include "format/test_pages.h"

namespace kvant::mxfp4_test {
namespace {

constexpr double kNumbers[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

// Returns the number of a code by its meaning: a sign, and the index of a magnitude.
double number_of(int code) {
  return (code >= 8 ? -1 : 1) * kNumbers[code % 8];
}

int byte_at(const std::vector<std::byte>& page, std::size_t at) {
  return std::to_integer<int>(page[at]);
}

double mean_squared_error(const char* format, int d) {
  const TestFormat test(format, d);
  double error = 0;
  for (unsigned seed = 1; seed <= 4; ++seed) {
    const std::vector<float> values = gaussian_values(d, seed);
    error += std::pow(relative_rms_error(values, test.decode(test.encode(values))), 2) / 4;
  }
  return error;
}

TEST(Mxfp4, TakesTheBitsThatUltraQuantPrints) {
  for (const int d : {64, 96, 128, 256, 512}) EXPECT_DOUBLE_EQ(find_format("mxfp4c156")->bits(d), 4.25) << d;
  EXPECT_DOUBLE_EQ(find_format("mxfp4c156")->bits(80), 4 + 8 * 3 / 80.0);
}

// The scale follows from the definition in double precision. Every code is the nearest number.
TEST(Mxfp4, StoresTheNearestNumberWithThePrintedScale) {
  for (const std::string& name : members_of("mxfp4c<P>")) {
    const double factor = std::stoi(name.substr(6)) / 1000.0;
    for (const int d : kTestHeadDims) {
      const TestFormat test(name, d);
      const std::vector<float> values = key_like_values(d, 1);
      const std::vector<std::byte> page = test.encode(values);
      const std::vector<float> decoded = test.decode(page);
      const int groups = (d + 31) / 32;
      for (int at = 0; at < kPageTokens * d; ++at) {
        const int token = at / d, group = at % d / 32;
        const int first = token * d + group * 32, last = std::min(first + 32, (token + 1) * d);
        double largest = 0;
        for (int i = first; i < last; ++i) largest = std::max(largest, std::fabs(double{values[i]}));
        const int exponent = byte_at(page, kPageTokens * d / 2 + token * groups + group) - 127;
        ASSERT_EQ(exponent, std::floor(std::log2(factor * largest) + 0.5)) << test.label();
        const double scale = std::ldexp(1, exponent);
        const double value = number_of(code_from_stream(page.data(), at, 4)) * scale;
        ASSERT_EQ(decoded[at], value);
        double nearest = 1e300;
        for (int code = 0; code < 16; ++code)
          nearest = std::min(nearest, std::fabs(number_of(code) * scale - values[at]));
        ASSERT_EQ(std::fabs(value - values[at]), nearest) << test.label();
      }
    }
  }
}

// The largest magnitude 7 gives 0.156 * 7 = 1.092, so the scale is 2^0 and 7 saturates at 6. The value -2.6
// lies nearer to -3 than to -2.
TEST(Mxfp4, MatchesAHandWorkedGroup) {
  std::vector<float> values(kPageTokens * 64, 0.0F);
  values[0] = 7;
  values[1] = -2.6F;
  values[2] = 0.2F;
  const TestFormat test("mxfp4c156", 64);
  const std::vector<std::byte> page = test.encode(values);
  EXPECT_EQ(byte_at(page, 0), 0xd7);  // the codes 7 and 8 + 5
  EXPECT_EQ(byte_at(page, kPageTokens * 32), 127);
  EXPECT_EQ(byte_at(page, kPageTokens * 32 + 1), 0);  // a group of zeros
  const std::vector<float> decoded = test.decode(page);
  EXPECT_EQ(decoded[0], 6);
  EXPECT_EQ(decoded[1], -3);
  EXPECT_EQ(decoded[2], 0);
  EXPECT_EQ(decoded[40], 0);
}

// An independent simulation of the same rule gave 0.0178 for the printed factor, and 0.0124 for 0.2.
TEST(Mxfp4, LeavesTheSimulatedErrorOnGaussianValues) {
  EXPECT_NEAR(mean_squared_error("mxfp4c156", 128), 0.0178, 0.0004);
  EXPECT_NEAR(mean_squared_error("mxfp4c200", 128), 0.0124, 0.0003);
}

TEST(Mxfp4, RefusesOtherNames) {
  for (const char* unknown : {"mxfp4", "mxfp4c", "mxfp4c49", "mxfp4c501", "mxfp4c156s"})
    EXPECT_EQ(find_format(unknown), nullptr) << unknown;
}

}  // namespace
}  // namespace kvant::mxfp4_test
