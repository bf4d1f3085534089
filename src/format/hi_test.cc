#include <algorithm>
#include <cstdio>

#include "format/test_pages.h"

namespace kvant::hi_test {
namespace {

constexpr const char* kPattern = "hi<h>-tok<B>g<N>";

struct Shape {
  int high = 0;
  int bits = 0;
  int group = 0;

  explicit Shape(const std::string& name) {
    std::sscanf(name.c_str(), "hi%d-tok%dg%d", &high, &bits, &group);
  }
  int coded(int d) const { return d - high; }
  int groups(int d) const { return (coded(d) + group - 1) / group; }
  int row_bytes(int d) const { return (coded(d) * bits + 7) / 8; }
  int last_code() const { return (1 << bits) - 1; }
};

// Reads the bfloat16 number at `at`.
double bf16_at(const std::byte* at) {
  std::uint32_t bits =
      (std::to_integer<std::uint32_t>(at[0]) << 16) | (std::to_integer<std::uint32_t>(at[1]) << 24);
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// Checks the coded channels of a token, which are read by the byte map at the top of hi.cc.
void check_coded(const Shape& shape, int d, const std::vector<std::byte>& page, int token,
                 const float* values, const float* decoded) {
  const std::byte* codes = page.data() + 2 * kPageTokens * shape.high;
  const std::byte* scales = codes + kPageTokens * shape.row_bytes(d);
  const std::byte* offsets = scales + 2 * kPageTokens * shape.groups(d);
  for (int i = 0; i < shape.coded(d); ++i) {
    const int begin = i / shape.group * shape.group;
    const int end = std::min(begin + shape.group, shape.coded(d));
    const auto [low, high] = std::minmax_element(values + begin, values + end);
    const int at = 2 * (token * shape.groups(d) + i / shape.group);
    const double scale = f16_at(scales + at);
    const double offset = f16_at(offsets + at);
    const double designed = (double{*high} - *low) / shape.last_code();
    ASSERT_NEAR(offset, *low, f16_rounding(*low));
    ASSERT_NEAR(scale, designed, 1.01 * f16_rounding(designed) + f16_rounding(*low) / shape.last_code());
    const int code = code_from_stream(codes + token * shape.row_bytes(d), i, shape.bits);
    ASSERT_EQ(decoded[i], static_cast<float>(offset + code * scale));
    ASSERT_LE(std::fabs(decoded[i] - double{values[i]}),
              designed / 2 + f16_rounding(*low) + (shape.last_code() + 1) * f16_rounding(designed));
  }
  for (int bit = shape.coded(d) * shape.bits; bit < 8 * shape.row_bytes(d); ++bit)
    ASSERT_EQ(code_from_stream(codes + token * shape.row_bytes(d), bit, 1), 0) << "a spare bit";
}

void check_page(const TestFormat& test, const std::vector<float>& values) {
  const Shape shape(test.format().name());
  const int d = test.d();
  const std::vector<std::byte> page = test.encode(values);
  const std::vector<float> decoded = test.decode(page);
  for (int token = 0; token < kPageTokens; ++token) {
    for (int i = 0; i < shape.high; ++i) {
      const float value = values[token * d + i];
      ASSERT_EQ(decoded[token * d + i], bf16_at(page.data() + 2 * (token * shape.high + i)));
      ASSERT_NEAR(decoded[token * d + i], value, std::fabs(value) * 0x1p-8);
    }
    const int first = token * d + shape.high;
    check_coded(shape, d, page, token, values.data() + first, decoded.data() + first);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(HighChannels, TakeTheBitsThatTheFormatStates) {
  for (const std::string& name : members_of(kPattern)) {
    const Shape shape(name);
    for (const int d : kTestHeadDims) {
      const double bits = 16.0 * shape.high + 8.0 * shape.row_bytes(d) + 32.0 * shape.groups(d);
      EXPECT_DOUBLE_EQ(find_format(name)->bits(d), bits / d) << name << ", d = " << d;
    }
  }
  EXPECT_DOUBLE_EQ(find_format("hi4-tok2g128")->bits(128), 2.6875);
  EXPECT_DOUBLE_EQ(find_format("hi2-tok2g64")->bits(64), 3.0);  // 62 codes of 2 bits take 16 bytes.
}

TEST(HighChannels, AreBf16AndTheOthersTheNearestGridPoints) {
  for (const std::string& name : members_of(kPattern)) {
    for (const int d : kTestHeadDims) {
      const TestFormat test(name, d);
      SCOPED_TRACE(test.label());
      check_page(test, key_like_values(d, 1));
      if (HasFatalFailure()) return;
    }
  }
}

TEST(HighChannels, KeepTheirOutliersOutOfTheOthersRanges) {
  const int d = 128;
  std::vector<float> values = gaussian_values(d, 2);
  for (int token = 0; token < kPageTokens; ++token) {
    for (int i = 0; i < 4; ++i) values[token * d + i] *= 1000;
  }
  const auto error_of_the_others = [&](const std::string& name) {
    const TestFormat test(name, d);
    const std::vector<float> decoded = test.decode(test.encode(values));
    double error = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (i % d >= 4) error += (double{values[i]} - decoded[i]) * (double{values[i]} - decoded[i]);
    }
    return std::sqrt(error / (kPageTokens * (d - 4)));
  };
  EXPECT_LT(error_of_the_others("hi4-tok4g128"), 0.15);
  EXPECT_GT(error_of_the_others("tok4g128"), 0.8);
}

TEST(HighChannels, MayBeAllThereAre) {
  const TestFormat test("hi32-tok8g32", 24);
  EXPECT_DOUBLE_EQ(test.format().bits(24), 16);
  const std::vector<float> values = key_like_values(24, 3);
  EXPECT_LT(relative_rms_error(values, test.decode(test.encode(values))), 0x1p-8);
}

}  // namespace
}  // namespace kvant::hi_test
