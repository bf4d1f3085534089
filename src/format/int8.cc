// int8 stores integers, with one universal scale per layer, KV head and side. TurboAttention keeps its
// unsealed tokens in this form (section 3.3, "enhanced KV cache buffer"), so attention multiplies unsealed
// tokens as integers too.
//
// Bytes of a page, d channels:
//   codes   [kPageTokens][d]   i8: clamp(round(x / s), -119, 119), halves rounded up
// Bits per value: 8.
//
// s is the model constant "universal-scale" (1 number): max |x| over the calibration text / 119. value = code
// * s. The error is at most s / 2 up to 119 s; larger values saturate, as in the paper. Scales below 2^-100
// make all codes zero. The format is integral (format.h): the integers are the codes, and the scale of every
// block is s. The format is row-wise (format.h), so left-out tokens are stored like all others.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "format/affine_row.h"
#include "format/families.h"
#include "format/integer_row.h"

namespace kvant {
namespace {

constexpr std::size_t int8_page_bytes(int d) {
  return static_cast<std::size_t>(kPageTokens) * d;
}
static_assert(int8_page_bytes(128) == 16384 && int8_page_bytes(64) == 8192);

constexpr const char* kUniversalScale = "universal-scale";
constexpr float kTiny = 0x1p-100F;

float universal_scale(const PageContext& context) {
  const std::span<const float> scale = context.constants.find(kUniversalScale);
  KVANT_CHECK(scale.size() == 1, "an int8 page's universal scale is missing");
  return scale[0];
}

class Int8Format : public RowWiseFormat {
 public:
  Int8Format() : RowWiseFormat("int8") {}

  std::size_t page_bytes(int head_dim) const override { return int8_page_bytes(head_dim); }
  std::vector<std::string> needed_constants() const override { return {kUniversalScale}; }
  std::size_t constant_size(int /*head_dim*/) const override { return 1; }
  RowParts row_parts(int head_dim) const override { return {static_cast<std::size_t>(head_dim)}; }

  void encode_rows(const float* values, int first, int n, const PageContext& context,
                   std::byte* page) const override {
    const int d = context.head_dim;
    const float scale = universal_scale(context);
    const float reciprocal = std::fabs(scale) >= kTiny ? 1 / scale : 0;
    std::array<float, kMaxHeadDim> integers;
    std::array<std::int8_t, kMaxHeadDim> codes;
    for (int row = 0; row < n; ++row) {
      to_integer_row(values + static_cast<std::ptrdiff_t>(row) * d, d, reciprocal, integers.data());
      std::transform(integers.begin(), integers.begin() + d, codes.begin(),
                     [](float integer) { return static_cast<std::int8_t>(integer); });
      std::memcpy(page + static_cast<std::ptrdiff_t>(first + row) * d, codes.data(), d);
    }
  }

  void decode(const std::byte* page, int n_tokens, const PageContext& context, float* values) const override {
    decode_scaled(page, n_tokens * context.head_dim, universal_scale(context), values);
  }

  bool integral() const override { return true; }
  void decode_integers(const std::byte* page, int n_tokens, const PageContext& context, float* integers,
                       float* scales) const override {
    decode_scaled(page, n_tokens * context.head_dim, 1, integers);
    std::fill_n(scales, kPageTokens / kIntegerBlock, universal_scale(context));
  }

 private:
  static void decode_scaled(const std::byte* page, int n, float scale, float* values) {
    const auto* codes = reinterpret_cast<const std::int8_t*>(page);
    for (int i = 0; i < n; ++i) values[i] = static_cast<float>(codes[i]) * scale;
  }
};

std::unique_ptr<Format> parse_int8(const std::string& name) {
  return name == "int8" ? std::make_unique<Int8Format>() : nullptr;
}

}  // namespace

const FormatFamily& int8_family() {
  static const FormatFamily family{
      "int8", "INT8 with one calibrated scale per head: TurboAttention's tail", {"int8"}, parse_int8};
  return family;
}

}  // namespace kvant
