// fp8-s1 stores 8-bit floating-point numbers without a scale. Serving engines cast values in this way if
// their scale is 1.
//
// Bytes of a page, d channels:
//   codes   [kPageTokens][d]  e4m3 (format/e4m3.h): largest value 448, smallest 2^-9
// Bits per value: 8.
//
// value = e4m3(code). The relative error is at most 2^-4; below 2^-6 the absolute error is at most 2^-10.
// Values beyond 448 saturate. A scale that was calibrated for the whole tensor is a transform before this
// format (transform/amax.cc). The format is row-wise (format.h), so left-out tokens are stored like all
// others.
#include <algorithm>
#include <cstdint>

#include "base/simd_clones.h"
#include "format/e4m3.h"
#include "format/families.h"

namespace kvant {
namespace {

constexpr std::size_t fp8_unscaled_page_bytes(int d) {
  return static_cast<std::size_t>(kPageTokens) * d;
}
static_assert(fp8_unscaled_page_bytes(128) == 16384 && fp8_unscaled_page_bytes(64) == 8192);

KVANT_SIMD_CLONES void cast_to_e4m3(const float* values, std::ptrdiff_t n, std::uint8_t* codes) {
  for (std::ptrdiff_t i = 0; i < n; ++i)
    codes[i] = e4m3_from_float(std::min(std::max(values[i], -kE4m3Max), kE4m3Max));
}

KVANT_SIMD_CLONES void cast_from_e4m3(const std::uint8_t* codes, std::ptrdiff_t n, float* values) {
  for (std::ptrdiff_t i = 0; i < n; ++i) values[i] = float_from_e4m3(codes[i]);
}

// The format has no FormatDescription, because GPU kernels expect a scale for each token of e4m3 numbers.
// Only the CPU attends to pages of this format.
class Fp8UnscaledFormat : public RowWiseFormat {
 public:
  Fp8UnscaledFormat() : RowWiseFormat("fp8-s1") {}

  std::size_t page_bytes(int head_dim) const override { return fp8_unscaled_page_bytes(head_dim); }
  RowParts row_parts(int head_dim) const override { return {static_cast<std::size_t>(head_dim)}; }
  NumberType number_type() const override { return NumberType::e4m3; }
  void read_parameters(const std::byte*, const PageContext& context, const CodeTable&,
                       CodeParameters& parameters) const override {
    parameters.token_scale.assign(kPageTokens, 0.0F);
    std::fill_n(parameters.token_scale.begin(), context.page_tokens, 1.0F);
  }

  void encode_rows(const float* values, int first, int n, const PageContext& context,
                   std::byte* page) const override {
    const std::ptrdiff_t d = context.head_dim;
    cast_to_e4m3(values, n * d, reinterpret_cast<std::uint8_t*>(page) + first * d);
  }

  void decode(const std::byte* page, int n_tokens, const PageContext& context, float* values) const override {
    const std::ptrdiff_t d = context.head_dim;
    cast_from_e4m3(reinterpret_cast<const std::uint8_t*>(page), n_tokens * d, values);
  }
};

std::unique_ptr<Format> parse_fp8_unscaled(const std::string& name) {
  return name == "fp8-s1" ? std::make_unique<Fp8UnscaledFormat>() : nullptr;
}

}  // namespace

const FormatFamily& fp8_unscaled_family() {
  static const FormatFamily family{
      "fp8-s1",
      "8-bit floating point (e4m3) without a scale, as serving engines cast values",
      {"fp8-s1"},
      parse_fp8_unscaled};
  return family;
}

}  // namespace kvant
