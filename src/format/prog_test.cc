#include <algorithm>
#include <cstdio>

#include "format/test_pages.h"

namespace kvant::prog_test {
namespace {

constexpr const char* kPattern = "prog<B>[-paper]";
constexpr int kBlock = 64;

struct Shape {
  int bits = 0;
  bool paper = false;

  explicit Shape(const std::string& name) {
    std::sscanf(name.c_str(), "prog%d", &bits);
    paper = name.ends_with("-paper");
  }
  int last_code() const { return (1 << bits) - 1; }
};

// Holds what a page stores for one channel of a block.
struct StoredChannel {
  int step, zero;
};

StoredChannel stored_channel(const std::vector<std::byte>& page, int bits, int d, int block, int channel) {
  const std::byte* steps = page.data() + kPageTokens * d * bits / 8;
  const std::byte* zeros = steps + 2 * d;
  return {std::to_integer<int>(steps[block * d + channel]),
          static_cast<signed char>(std::to_integer<unsigned char>(zeros[block * d + channel]))};
}

float stored_scale(const std::vector<std::byte>& page, int block) {
  float scale;
  std::memcpy(&scale, page.data() + page.size() - 8 + 4 * block, 4);
  return scale;
}

// Returns values k * 2^-5 with |k| <= 119, so the first stage is exact and gives the integers k.
std::vector<float> integer_values(int d, std::uint32_t seed, std::vector<int>& integers) {
  std::mt19937 random(seed);
  integers.resize(static_cast<std::size_t>(kPageTokens) * d);
  for (std::size_t i = 0; i < integers.size(); ++i) {
    const int spread = 1 + static_cast<int>(i % d) * 118 / d;  // Channels range from narrow to wide.
    integers[i] = static_cast<int>(random() % (2 * spread + 1)) - spread;
  }
  for (int block = 0; block < 2; ++block) integers[block * kBlock * d + 3] = block == 0 ? 119 : -119;
  std::vector<float> values(integers.size());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(integers[i]) * 0x1p-5F;
  return values;
}

// Computes the second stage for one channel of one block by the formulas at the top of prog.cc.
struct Designed {
  int step, zero;

  Designed(int low, int high, const Shape& shape, Side side) {
    const double exact = static_cast<double>(high - low) / shape.last_code();
    if (!shape.paper) {
      step = std::max(1, static_cast<int>(std::ceil(exact)));
      zero = low;
    } else if (side == Side::key) {
      step = std::max(1, static_cast<int>(std::floor(exact + 0.5)));
      zero = static_cast<int>(std::floor(static_cast<double>(low) / step + 0.5));
    } else {
      step = std::max(1, static_cast<int>(std::ceil(exact)));
      zero = static_cast<int>(std::ceil(static_cast<double>(low) / step));
    }
  }
  int decode(int integer, const Shape& shape) const {
    const int zero_point = shape.paper ? zero * step : zero;
    const int code = static_cast<int>(std::floor(static_cast<double>(integer - zero_point) / step + 0.5));
    return std::clamp(std::clamp(code, 0, shape.last_code()) * step + zero_point, -127, 127);
  }
};

void check_exact_page(const TestFormat& test, Side side) {
  const Shape shape(test.format().name());
  const int d = test.d();
  std::vector<int> integers;
  const std::vector<float> values = integer_values(d, 1, integers);
  PageContext context = test.context();
  context.constants.side = side;
  std::vector<std::byte> page(test.format().page_bytes(d));
  test.format().encode(values.data(), {}, context, page.data());
  std::vector<float> decoded(values.size());
  test.format().decode(page.data(), kPageTokens, context, decoded.data());
  std::vector<float> whole(values.size());
  float scales[2];
  test.format().decode_integers(page.data(), kPageTokens, context, whole.data(), scales);
  for (int block = 0; block < 2; ++block) {
    ASSERT_EQ(stored_scale(page, block), 0x1p-5F);
    ASSERT_EQ(scales[block], 0x1p-5F);
    for (int channel = 0; channel < d; ++channel) {
      int low = 1000;
      int high = -1000;
      for (int token = block * kBlock; token < (block + 1) * kBlock; ++token) {
        low = std::min(low, integers[token * d + channel]);
        high = std::max(high, integers[token * d + channel]);
      }
      const Designed designed(low, high, shape, side);
      const StoredChannel stored = stored_channel(page, shape.bits, d, block, channel);
      ASSERT_EQ(stored.step, designed.step) << channel;
      ASSERT_EQ(stored.zero, designed.zero) << channel;
      for (int token = block * kBlock; token < (block + 1) * kBlock; ++token) {
        const std::size_t at = static_cast<std::size_t>(token) * d + channel;
        const int expected = designed.decode(integers[at], shape);
        ASSERT_EQ(whole[at], static_cast<float>(expected));
        ASSERT_EQ(decoded[at], static_cast<float>(expected) * 0x1p-5F);
      }
    }
  }
}

TEST(ProgressiveBlocks, TakeTheBitsOfTheDesignsTableAndTheBlocksScale) {
  for (const std::string& name : members_of(kPattern)) {
    for (const int d : kTestHeadDims) {
      EXPECT_DOUBLE_EQ(find_format(name)->bits(d), Shape(name).bits + 16.0 / 64 + 32.0 / (64 * d)) << name;
    }
  }
}

TEST(ProgressiveBlocks, AreTheAlgorithmsIntegers) {
  for (const std::string& name : members_of(kPattern)) {
    for (const int d : kTestHeadDims) {
      for (const Side side : kSides) {
        const TestFormat test(name, d);
        SCOPED_TRACE(test.label() + ", " + side_name(side));
        check_exact_page(test, side);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(ProgressiveBlocks, MatchAHandWorkedChannel) {
  // Channel 0 holds q1 = -60, 59 and 0 with s = 1. Channel 1 holds the block's largest magnitude, 119. With
  // prog2, si is ceil(119 / 3) = 40 and zi is -60. 59 has the code round(119 / 40) = 3 and the value 60. 0
  // has the code round(60 / 40) = 2 and the value 20.
  std::vector<float> values(kPageTokens * 64, 0.0F);
  values[0] = -60;
  values[64] = 59;
  values[1] = 119;
  const TestFormat test("prog2", 64);
  const std::vector<std::byte> page = test.encode(values);
  EXPECT_EQ(stored_scale(page, 0), 1.0F);
  EXPECT_EQ(stored_channel(page, 2, 64, 0, 0).step, 40);
  EXPECT_EQ(stored_channel(page, 2, 64, 0, 0).zero, -60);
  const std::vector<float> decoded = test.decode(page);
  EXPECT_EQ(decoded[0], -60);
  EXPECT_EQ(decoded[64], 60);
  EXPECT_EQ(decoded[128], 20);
  EXPECT_EQ(decoded[1], 120);  // 0 + 3 * 40
}

TEST(ProgressiveBlocks, StayWithinTheStatedError) {
  for (const std::string& name : members_of(kPattern)) {
    const Shape shape(name);
    if (shape.paper) continue;  // The paper's rounding may clip a third of a channel's range.
    for (const int d : kTestHeadDims) {
      const TestFormat test(name, d);
      SCOPED_TRACE(test.label());
      const std::vector<float> values = key_like_values(d, 2);
      const std::vector<std::byte> page = test.encode(values);
      const std::vector<float> decoded = test.decode(page);
      for (int token = 0; token < kPageTokens; ++token) {
        const int block = token / kBlock;
        for (int channel = 0; channel < d; ++channel) {
          const std::size_t at = static_cast<std::size_t>(token) * d + channel;
          const int step = stored_channel(page, shape.bits, d, block, channel).step;
          ASSERT_LE(std::fabs(double{decoded[at]} - values[at]),
                    stored_scale(page, block) * (step + 1) / 2 * 1.0001);
        }
      }
    }
  }
}

TEST(ProgressiveBlocks, TakeTheScaleFromTheTokensThatAreNotLeftOut) {
  std::vector<float> values = gaussian_values(64, 3);
  for (float& value : values) value = std::clamp(value, -2.0F, 2.0F);
  std::fill_n(values.begin() + 5 * 64, 64, 1e5F);
  TokenMask outlier;
  outlier.set(5);
  const TestFormat test("prog4", 64);
  EXPECT_NEAR(stored_scale(test.encode(values, outlier), 0), 2.0 / 119, 1e-6);
  EXPECT_NEAR(stored_scale(test.encode(values), 0), 1e5 / 119, 0.01);
  TokenMask first_block;
  for (int token = 0; token < kBlock; ++token) first_block.set(token);
  const std::vector<std::byte> half_empty = test.encode(values, first_block);
  EXPECT_EQ(stored_scale(half_empty, 0), 0);
  EXPECT_GT(stored_scale(half_empty, 1), 0);
}

TEST(ProgressiveBlocks, KeepConstantPages) {
  for (const std::string& name : members_of(kPattern)) {
    for (const float constant : {0.0F, 0.7F, -123.4F, 1e-20F, 1e30F}) {
      const TestFormat test(name, 80);
      const std::vector<float> decoded =
          test.decode(test.encode(std::vector<float>(kPageTokens * 80, constant)));
      for (const float value : decoded) ASSERT_NEAR(value, constant, 1e-6 * std::fabs(constant)) << name;
    }
  }
}

}  // namespace
}  // namespace kvant::prog_test
