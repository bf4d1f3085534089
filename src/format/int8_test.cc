#include <algorithm>

#include "format/test_pages.h"

namespace kvant {
namespace {

// Makes int8 pages of a head with known universal scales.
class Int8Pages {
 public:
  Int8Pages(float key_scale, float value_scale) {
    constants_.set(3, 1, Side::key, "universal-scale", {key_scale});
    constants_.set(3, 1, Side::value, "universal-scale", {value_scale});
  }
  PageContext context(Side side, int d) const { return {d, {&constants_, 3, 1, side}}; }

 private:
  Constants constants_;
};

TEST(UniversalScale, TakesEightBitsAndOneNumberOfEachHead) {
  const Format& format = *find_format("int8");
  for (const int d : kTestHeadDims) {
    EXPECT_EQ(format.page_bytes(d), static_cast<std::size_t>(kPageTokens) * d);
    EXPECT_EQ(format.constant_size(d), 1U);
  }
  EXPECT_EQ(format.needed_constants(), std::vector<std::string>{"universal-scale"});
  EXPECT_TRUE(format.row_wise());
}

TEST(UniversalScale, MatchesHandWorkedCodes) {
  const Int8Pages pages(0.5F, 0.25F);
  const Format& format = *find_format("int8");
  std::vector<float> row(64, 0.0F);
  const float values[] = {0.24F, 0.25F, -0.25F, -0.26F, 59.5F, 59.9F, 1e30F, -1e30F};
  const int key_codes[] = {0, 1, 0, -1, 119, 119, 119, -119};  // x / 0.5, halves rounded up
  const int value_codes[] = {1, 1, -1, -1, 119, 119, 119, -119};
  std::copy(std::begin(values), std::end(values), row.begin());
  std::vector<std::byte> page(format.page_bytes(64));
  for (const Side side : kSides) {
    const PageContext context = pages.context(side, 64);
    format.encode_rows(row.data(), 5, 1, context, page.data());
    std::vector<float> decoded(6 * 64);
    format.decode(page.data(), 6, context, decoded.data());
    for (int i = 0; i < 8; ++i) {
      const int code = side == Side::key ? key_codes[i] : value_codes[i];
      EXPECT_EQ(static_cast<signed char>(page[5 * 64 + i]), code) << i;
      EXPECT_EQ(decoded[5 * 64 + i], static_cast<float>(code) * (side == Side::key ? 0.5F : 0.25F)) << i;
    }
  }
}

TEST(UniversalScale, KeepsValuesInsideTheCalibratedRangeWithinHalfAStep) {
  for (const int d : kTestHeadDims) {
    const std::vector<float> values = key_like_values(d, 1);
    float largest = 0;
    for (const float value : values) largest = std::max(largest, std::fabs(value));
    const Int8Pages pages(largest / 119, 1);
    const PageContext context = pages.context(Side::key, d);
    const Format& format = *find_format("int8");
    std::vector<std::byte> page(format.page_bytes(d));
    format.encode(values.data(), {}, context, page.data());
    std::vector<float> decoded(values.size());
    format.decode(page.data(), kPageTokens, context, decoded.data());
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_NEAR(decoded[i], values[i], 0.5001 * largest / 119);
    }
  }
}

TEST(UniversalScale, DecodesToZerosWhereCalibrationSawOnlyZeros) {
  const Int8Pages pages(0, 1);
  const PageContext context = pages.context(Side::key, 64);
  const Format& format = *find_format("int8");
  const std::vector<float> values = gaussian_values(64, 2);
  std::vector<std::byte> page(format.page_bytes(64));
  format.encode(values.data(), {}, context, page.data());
  std::vector<float> decoded(values.size());
  format.decode(page.data(), kPageTokens, context, decoded.data());
  EXPECT_TRUE(std::all_of(decoded.begin(), decoded.end(), [](float x) { return x == 0; }));
}

// TurboAttention quantizes a page from the tail's integers. The largest integer sets the block's scale, so
// the first stage moves no value by more than half of that scale.
TEST(UniversalScale, SealsIntoProgressiveBlocksFromItsOwnIntegers) {
  const int d = 64;
  const Int8Pages pages(0.125F, 1);
  const PageContext context = pages.context(Side::key, d);
  std::vector<float> values = gaussian_values(d, 3);
  values[0] = values[64 * d] = 119 * 0.125F;  // Both blocks reach the calibrated range.
  const Format& tail = *find_format("int8");
  std::vector<std::byte> unsealed(tail.page_bytes(d));
  tail.encode(values.data(), {}, context, unsealed.data());
  std::vector<float> rounded(values.size());
  tail.decode(unsealed.data(), kPageTokens, context, rounded.data());

  const Format& prog = *find_format("prog5");
  std::vector<std::byte> sealed(prog.page_bytes(d));
  prog.encode(rounded.data(), {}, context, sealed.data());
  std::vector<float> integers(values.size());
  float scales[2];
  prog.decode_integers(sealed.data(), kPageTokens, context, integers.data(), scales);
  for (const float scale : scales) EXPECT_EQ(scale, 0.125F);
}

}  // namespace
}  // namespace kvant
