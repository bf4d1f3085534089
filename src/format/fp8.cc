// fp8 stores 8-bit floating-point numbers with one scale per token. The format is the usual quantized cache
// of serving engines.
//
// Bytes of a page, d channels:
//   codes   [kPageTokens][d]  e4m3: sign, 4 bits of exponent (bias 7), 3 of mantissa; no infinities,
//                             largest value 448, smallest 2^-9; never the NaN codes 0x7f and 0xff
//   scales  [kPageTokens]     f32: max |x| of the token / 448
// Bits per value: 8 + 32 / d.
//
// value = e4m3(code) * scale. The relative error is at most 2^-4; below 2^-6 * scale the absolute error is at
// most 2^-10 * scale. Tokens whose largest magnitude is below 2^-100 decode to zeros. Larger magnitudes than
// 3.4e38 count as 3.4e38 in the scale, so every decoded value is finite. The format is row-wise (format.h),
// so left-out tokens are stored like all others.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/simd_clones.h"
#include "format/e4m3.h"
#include "format/families.h"

namespace kvant {
namespace {

constexpr std::size_t fp8_page_bytes(int d) {
  return static_cast<std::size_t>(kPageTokens) * (d + 4);
}
static_assert(fp8_page_bytes(128) == 16896 && fp8_page_bytes(64) == 8704);

constexpr float kTiny = 0x1p-100F;  // 448 / kTiny is still finite.
constexpr float kHuge = 3.4e38F;    // Above kHuge, rounding could carry code * scale beyond the largest F32.

KVANT_SIMD_CLONES void encode_token(const float* values, int d, float reciprocal, std::uint8_t* codes) {
  for (int i = 0; i < d; ++i) {
    const float x = values[i] * reciprocal;
    codes[i] = e4m3_from_float(std::min(std::max(x, -kE4m3Max), kE4m3Max));
  }
}

KVANT_SIMD_CLONES void decode_token(const std::uint8_t* codes, int d, float scale, float* values) {
  for (int i = 0; i < d; ++i) values[i] = float_from_e4m3(codes[i]) * scale;
}

class Fp8Format : public RowWiseFormat {
 public:
  Fp8Format() : RowWiseFormat("fp8") {}

  std::size_t page_bytes(int head_dim) const override { return fp8_page_bytes(head_dim); }
  RowParts row_parts(int head_dim) const override {
    return {static_cast<std::size_t>(head_dim), sizeof(float)};
  }
  std::optional<FormatDescription> describe() const override {
    FormatDescription description;
    description.page.kind = CodeKind::e4m3;
    description.page.bits = 8;
    description.page.factor = TokenFactor::single;
    description.largest = kE4m3Max;
    return description;
  }
  NumberType number_type() const override { return NumberType::e4m3; }
  void read_parameters(const std::byte* page, const PageContext& context, const CodeTable&,
                       CodeParameters& parameters) const override {
    parameters.token_scale.resize(kPageTokens);
    std::memcpy(parameters.token_scale.data(), scale_of(page, 0, context),
                context.page_tokens * sizeof(float));
  }

  void encode_rows(const float* values, int first, int n, const PageContext& context,
                   std::byte* page) const override {
    const int d = context.head_dim;
    auto* codes = reinterpret_cast<std::uint8_t*>(page);
    for (int row = 0; row < n; ++row) {
      const float* token = values + static_cast<std::ptrdiff_t>(row) * d;
      float largest = 0;
      for (int i = 0; i < d; ++i) largest = std::max(largest, std::fabs(token[i]));
      largest = largest < kTiny ? 0 : std::min(largest, kHuge);
      const float scale = largest / kE4m3Max;
      encode_token(token, d, largest > 0 ? kE4m3Max / largest : 0,
                   codes + static_cast<std::ptrdiff_t>(first + row) * d);
      std::memcpy(scale_of(page, first + row, context), &scale, sizeof scale);
    }
  }

  void decode(const std::byte* page, int n_tokens, const PageContext& context, float* values) const override {
    const int d = context.head_dim;
    const auto* codes = reinterpret_cast<const std::uint8_t*>(page);
    for (int token = 0; token < n_tokens; ++token) {
      float scale;
      std::memcpy(&scale, scale_of(page, token, context), sizeof scale);
      const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(token) * d;
      decode_token(codes + row, d, scale, values + row);
    }
  }

 private:
  template <class Byte>
  static Byte* scale_of(Byte* page, int token, const PageContext& context) {
    return page + static_cast<std::ptrdiff_t>(context.page_tokens) * context.head_dim +
           static_cast<std::ptrdiff_t>(token) * 4;
  }
};

std::unique_ptr<Format> parse_fp8(const std::string& name) {
  return name == "fp8" ? std::make_unique<Fp8Format>() : nullptr;
}

}  // namespace

const FormatFamily& fp8_family() {
  static const FormatFamily family{
      "fp8", "8-bit floating point (e4m3), one f32 scale per token", {"fp8"}, parse_fp8};
  return family;
}

}  // namespace kvant
