#include <algorithm>
#include <cstdio>

#include "format/test_pages.h"

namespace kvant {
namespace {

constexpr const char* kPattern = "ch<B>g<N>";

struct Shape {
  int bits = 0;
  int group = 0;  // tokens

  explicit Shape(const std::string& name) { std::sscanf(name.c_str(), "ch%dg%d", &bits, &group); }
  int last_code() const { return (1 << bits) - 1; }
};

// Checks one channel of one group against the specification, in double precision.
void check_channel(const TestFormat& test, const std::vector<float>& values, const TokenMask& left_out,
                   const std::vector<std::byte>& page, const std::vector<float>& decoded, int group,
                   int channel) {
  const Shape shape(test.format().name());
  const int d = test.d();
  const std::byte* scales = page.data() + kPageTokens * d * shape.bits / 8;
  const std::byte* offsets = scales + 2 * (kPageTokens / shape.group) * d;
  const double scale = f16_at(scales + 2 * (group * d + channel));
  const double offset = f16_at(offsets + 2 * (group * d + channel));
  double low = 1e300;
  double high = -1e300;
  for (int token = group * shape.group; token < (group + 1) * shape.group; ++token) {
    if (left_out.test(token)) continue;
    low = std::min(low, double{values[token * d + channel]});
    high = std::max(high, double{values[token * d + channel]});
  }
  if (low > high) {
    ASSERT_EQ(scale, 0);
    ASSERT_EQ(offset, 0);
    return;
  }
  const double designed = (high - low) / shape.last_code();
  ASSERT_NEAR(offset, low, f16_rounding(low));
  ASSERT_NEAR(scale, designed, 1.01 * f16_rounding(designed) + f16_rounding(low) / shape.last_code());
  for (int token = group * shape.group; token < (group + 1) * shape.group; ++token) {
    const std::size_t at = static_cast<std::size_t>(token) * d + channel;
    const int code = code_from_stream(page.data(), at, shape.bits);
    ASSERT_EQ(decoded[at], static_cast<float>(offset + code * scale));
    if (left_out.test(token)) continue;
    ASSERT_LE(std::fabs(decoded[at] - double{values[at]}),
              designed / 2 + f16_rounding(low) + (shape.last_code() + 1) * f16_rounding(designed));
  }
}

void check_page(const TestFormat& test, const std::vector<float>& values, const TokenMask& left_out) {
  const std::vector<std::byte> page = test.encode(values, left_out);
  const std::vector<float> decoded = test.decode(page);
  for (int group = 0; group < kPageTokens / Shape(test.format().name()).group; ++group) {
    for (int channel = 0; channel < test.d(); ++channel) {
      check_channel(test, values, left_out, page, decoded, group, channel);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(ChannelGroups, TakeTheBitsOfTheDesignsTable) {
  for (const std::string& name : members_of(kPattern)) {
    const Shape shape(name);
    for (const int d : kTestHeadDims) {
      EXPECT_DOUBLE_EQ(find_format(name)->bits(d), shape.bits + 32.0 / shape.group) << name;
    }
  }
  EXPECT_DOUBLE_EQ(find_format("ch4g128")->bits(64), 4.25);
}

TEST(ChannelGroups, StoreTheNearestGridPointOfTheDesignedGrid) {
  TokenMask sink;
  for (int token = 0; token < 4; ++token) sink.set(token);
  TokenMask first_group;
  for (int token = 0; token < 32; ++token) first_group.set(token);
  for (const std::string& name : members_of(kPattern)) {
    for (const int d : kTestHeadDims) {
      const TestFormat test(name, d);
      SCOPED_TRACE(test.label());
      check_page(test, key_like_values(d, 1), TokenMask{});
      check_page(test, key_like_values(d, 2), sink);
      check_page(test, key_like_values(d, 3), first_group);
      std::vector<float> small = key_like_values(d, 4);
      for (float& value : small) value *= 1e-6F;  // Scales and offsets become f16 denormals.
      check_page(test, small, TokenMask{});
      if (HasFatalFailure()) return;
    }
  }
}

TEST(ChannelGroups, KeepConstantGroupsExactToF16) {
  for (const std::string& name : members_of(kPattern)) {
    for (const float constant : {0.0F, 0.7F, -123.4F, 1000.1F, 3e-7F}) {
      const TestFormat test(name, 80);
      const std::vector<float> decoded =
          test.decode(test.encode(std::vector<float>(kPageTokens * 80, constant)));
      for (const float value : decoded) ASSERT_NEAR(value, constant, f16_rounding(constant)) << name;
    }
  }
}

TEST(ChannelGroups, LetNoMaskedOutlierWidenTheRange) {
  std::vector<float> values(kPageTokens * 64);
  for (int token = 0; token < kPageTokens; ++token) {
    for (int i = 0; i < 64; ++i) values[token * 64 + i] = static_cast<float>(token % 16) / 16;
  }
  std::fill_n(values.begin() + 3 * 64, 64, 1e4F);
  TokenMask outlier;
  outlier.set(3);
  const TestFormat test("ch4g128", 64);
  const std::vector<float> with_mask = test.decode(test.encode(values, outlier));
  const std::vector<float> without = test.decode(test.encode(values));
  EXPECT_NEAR(with_mask[4 * 64], 4.0 / 16, 1e-3);
  EXPECT_GT(std::fabs(without[4 * 64] - 4.0 / 16), 0.1);
}

}  // namespace
}  // namespace kvant
