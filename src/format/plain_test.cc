#include <limits>

#include "format/test_pages.h"

namespace kvant {
namespace {

TEST(PlainFormats, TakeSixteenBits) {
  for (const std::string& name : members_of("bf16|f16")) {
    EXPECT_TRUE(find_format(name)->plain());
    for (const int d : kTestHeadDims) EXPECT_EQ(find_format(name)->bits(d), 16);
  }
}

TEST(PlainFormats, StayWithinHalfAUnitOfTheLastPlace) {
  for (const int d : kTestHeadDims) {
    for (const std::vector<float>& values : {key_like_values(d, 1), gaussian_values(d, 2)}) {
      const std::vector<float> bf16 = TestFormat("bf16", d).decode(TestFormat("bf16", d).encode(values));
      const std::vector<float> f16 = TestFormat("f16", d).decode(TestFormat("f16", d).encode(values));
      for (std::size_t i = 0; i < values.size(); ++i) {
        ASSERT_LE(std::fabs(double{bf16[i]} - values[i]), std::fabs(values[i]) * 0x1p-8);
        ASSERT_LE(std::fabs(double{f16[i]} - values[i]), f16_rounding(values[i]));
      }
    }
  }
}

TEST(PlainFormats, SaturateBeyondTheirRange) {
  std::vector<float> values(kPageTokens * 64, 1.0F);
  values[0] = std::numeric_limits<float>::max();
  values[1] = -std::numeric_limits<float>::max();
  values[2] = 65519.9F;
  values[3] = -65520.0F;
  const std::vector<float> f16 = TestFormat("f16", 64).decode(TestFormat("f16", 64).encode(values));
  EXPECT_EQ(f16[0], 65504.0F);
  EXPECT_EQ(f16[1], -65504.0F);
  EXPECT_EQ(f16[2], 65504.0F);
  EXPECT_EQ(f16[3], -65504.0F);
  const std::vector<float> bf16 = TestFormat("bf16", 64).decode(TestFormat("bf16", 64).encode(values));
  EXPECT_EQ(bf16[0], 0x1.fep127F);
  EXPECT_EQ(bf16[1], -0x1.fep127F);
}

TEST(PlainFormats, StoreLittleEndianValuesTokenByToken) {
  std::vector<float> values(kPageTokens * 64, 0.0F);
  values[64 + 2] = 1.0F;  // token 1, channel 2
  const std::vector<std::byte> bf16 = TestFormat("bf16", 64).encode(values);
  EXPECT_EQ(bf16[2 * (64 + 2)], std::byte{0x80});
  EXPECT_EQ(bf16[2 * (64 + 2) + 1], std::byte{0x3f});
  const std::vector<std::byte> f16 = TestFormat("f16", 64).encode(values);
  EXPECT_EQ(f16[2 * (64 + 2)], std::byte{0x00});
  EXPECT_EQ(f16[2 * (64 + 2) + 1], std::byte{0x3c});
}

}  // namespace
}  // namespace kvant
