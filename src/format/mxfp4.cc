// mxfp4c<P> stores 4-bit floating-point numbers with a power of two as the scale of 32 channels, as
// UltraQuant does in vLLM. P is in thousandths, and UltraQuant's P is 156.
//
// Bytes of a page, d channels, n = ceil(d / 32) groups:
//   codes   [kPageTokens][d]  4 bits each, a little-endian bit stream (bit_packing.h): d / 2 bytes a token
//   scales  [kPageTokens][n]  u8, an exponent with a bias of 127 (E8M0)
// Bits per value: 4 + 8 n / d, which is 4.25 if 32 divides d.
//
// value = number * 2^(scale - 127), with numbers +-{0, 0.5, 1, 1.5, 2, 3, 4, 6} (E2M1). Bit 3 of a code is
// the sign, and bits 0 to 2 select the magnitude. The exponent is floor(log2(P / 1000 * max |x|) + 0.5). The
// number is the one nearest to x divided by the scale; ties go to the smaller magnitude, and larger values
// saturate. A group of zeros has the scale byte 0 and decodes to zeros. Exponents stop at -126 and at 125,
// where all numbers are finite. The format is row-wise (format.h), so left-out tokens are stored like all
// others.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "format/bit_packing.h"
#include "format/code_block.h"
#include "format/families.h"
#include "format/name_reader.h"

namespace kvant {
namespace {

constexpr int kMxGroup = 32;  // channels
constexpr int kMxBits = 4;
constexpr int kMxBias = 127;
constexpr double kLeastExponent = -126, kMostExponent = 125;  // 6 * 2^125 is finite
constexpr std::array<float, 8> kMxMagnitudes{0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
constexpr std::array<float, 7> kMxMidpoints{0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5};

constexpr int mx_groups(int d) {
  return (d + kMxGroup - 1) / kMxGroup;
}
constexpr std::size_t mx_page_bytes(int d) {
  return static_cast<std::size_t>(kPageTokens) * (d * kMxBits / 8 + mx_groups(d));
}
static_assert(mx_page_bytes(128) == 8704 && mx_page_bytes(64) == 4352 && mx_page_bytes(80) == 5504);

// Returns the E8M0 byte for values x [n], which is 0 if all values are 0.
std::uint8_t scale_byte(const float* x, int n, double factor) {
  double largest = 0;
  for (int i = 0; i < n; ++i) largest = std::max(largest, std::fabs(double{x[i]}));
  if (largest == 0) return 0;
  const double exponent = std::floor(std::log2(factor * largest) + 0.5);
  return static_cast<std::uint8_t>(std::clamp(exponent, kLeastExponent, kMostExponent) + kMxBias);
}

std::uint16_t mx_code(double number) {
  const double magnitude = std::fabs(number);
  int code = 0;
  for (const float midpoint : kMxMidpoints) code += magnitude > midpoint ? 1 : 0;
  return static_cast<std::uint16_t>(code + (number < 0 ? 8 : 0));
}

float mx_number(int code) {
  const float magnitude = kMxMagnitudes[code & 7];
  return (code & 8) != 0 ? -magnitude : magnitude;
}

float mx_scale(std::uint8_t byte) {
  return byte == 0 ? 0.0F : std::ldexp(1.0F, byte - kMxBias);
}

class Mxfp4Format : public RowWiseFormat {
 public:
  Mxfp4Format(const std::string& name, int thousandths)
      : RowWiseFormat(name), factor_(thousandths / 1000.0) {}

  std::size_t page_bytes(int head_dim) const override { return mx_page_bytes(head_dim); }
  RowParts row_parts(int head_dim) const override {
    return {static_cast<std::size_t>(head_dim) * kMxBits / 8, static_cast<std::size_t>(mx_groups(head_dim))};
  }

  void encode_rows(const float* values, int first, int n, const PageContext& context,
                   std::byte* page) const override {
    const int d = context.head_dim;
    std::array<std::uint16_t, kMaxHeadDim> codes;
    for (int row = 0; row < n; ++row) {
      const float* x = values + static_cast<std::ptrdiff_t>(row) * d;
      for (int begin = 0; begin < d; begin += kMxGroup) {
        const int size = std::min(kMxGroup, d - begin);
        const std::uint8_t byte = scale_byte(x + begin, size, factor_);
        scales_of(page, first + row, context)[begin / kMxGroup] = std::byte{byte};
        const double reciprocal = byte == 0 ? 0 : std::ldexp(1.0, kMxBias - byte);
        for (int i = begin; i < begin + size; ++i) codes[i] = mx_code(x[i] * reciprocal);
      }
      pack_codes(codes.data(), d, kMxBits, codes_of(page, first + row, d));
    }
  }

  void decode(const std::byte* page, int n_tokens, const PageContext& context, float* values) const override {
    const int d = context.head_dim;
    std::array<std::uint16_t, kMaxHeadDim> codes;
    for (int token = 0; token < n_tokens; ++token) {
      unpack_codes(codes_of(page, token, d), d, kMxBits, codes.data());
      const std::byte* scales = scales_of(page, token, context);
      float* row = values + static_cast<std::ptrdiff_t>(token) * d;
      for (int i = 0; i < d; ++i)
        row[i] = mx_number(codes[i]) * mx_scale(std::to_integer<std::uint8_t>(scales[i / kMxGroup]));
    }
  }

  std::optional<CodeScheme> code_scheme(int head_dim) const override {
    if (head_dim % kMxGroup != 0) return std::nullopt;
    return CodeScheme{.meaning = CodeMeaning::level,
                      .bits = kMxBits,
                      .group_bytes = kMxBits,
                      .group_channels = kCodeBlock,
                      .token_groups = mx_groups(head_dim)};
  }

  // Twice each number is an integer, so the table is exact.
  CodeTable code_table(const PageContext&) const override {
    constexpr int kEntries = 32;
    CodeTable table;
    for (int code = 0; code < 1 << kMxBits; ++code) table.biased.push_back(biased_byte(2 * mx_number(code)));
    table.biased.resize(kEntries);
    table.scale = 0.5F;
    return table;
  }

  void read_parameters(const std::byte* page, const PageContext& context, const CodeTable& table,
                       CodeParameters& parameters) const override {
    const int groups = mx_groups(context.head_dim);
    parameters.token_scale.resize(static_cast<std::size_t>(groups) * kPageTokens);
    for (int token = 0; token < kPageTokens; ++token) {
      const std::byte* scales = scales_of(page, token, context);
      for (int group = 0; group < groups; ++group) {
        parameters.token_scale[group * kPageTokens + token] =
            table.scale * mx_scale(std::to_integer<std::uint8_t>(scales[group]));
      }
    }
  }

 private:
  template <class Byte>
  static Byte* codes_of(Byte* page, int token, int d) {
    return page + static_cast<std::ptrdiff_t>(token) * (d * kMxBits / 8);
  }
  template <class Byte>
  static Byte* scales_of(Byte* page, int token, const PageContext& context) {
    return codes_of(page, context.page_tokens, context.head_dim) +
           static_cast<std::ptrdiff_t>(token) * mx_groups(context.head_dim);
  }

  double factor_;
};

std::unique_ptr<Format> parse_mxfp4(const std::string& name) {
  NameReader reader(name);
  if (!reader.take("mxfp4c")) return nullptr;
  const int thousandths = reader.take_number();
  if (!reader.at_end() || thousandths < 50 || thousandths > 500) return nullptr;
  return std::make_unique<Mxfp4Format>(name, thousandths);
}

}  // namespace

const FormatFamily& mxfp4_family() {
  static const FormatFamily family{
      "mxfp4c<P>",
      "UltraQuant: 4-bit floating point; 32 channels of a token share a power of two near P / 1000 of the "
      "largest magnitude",
      {"mxfp4c156", "mxfp4c200"},
      parse_mxfp4};
  return family;
}

}  // namespace kvant
