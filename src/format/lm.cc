// lm<B>[u|n] is Lloyd-Max quantization of the unit vector (TurboQuant, as Sparse V uses it); B is 2, 3, 4
// or 5. The format suits values after a randomized Hadamard transform. Coordinates of the unit vector are
// then nearly normal with variance 1 / d, for which Lloyd-Max levels are optimal.
//
// Bytes of a page, d channels:
//   codes   [kPageTokens][d]  B bits each, a little-endian bit stream (bit_packing.h): d * B / 8 bytes
//                             a token
//   gains   [kPageTokens]     f16
// Bits per value: B + 16 / d.
//
// value = gain * level[code] / sqrt(d), with the 2^B Lloyd-Max levels of N(0, 1) in ascending order
// (lloyd_max.h). The code selects the level nearest to x * sqrt(d) / |x|; ties go to the lower level. The
// gain follows GainRule::least_squares, which has the smaller error. With the suffix u the gain follows
// GainRule::unbiased, which does not shrink scores (gain.h). With the suffix n the gain follows
// GainRule::length, as in vLLM's TurboQuant. Tokens with |x| < 2^-25 decode to zeros, and gains saturate at
// 65504. The format is row-wise (format.h), so left-out tokens are stored like all others.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/float16.h"
#include "base/simd_clones.h"
#include "format/affine_row.h"
#include "format/bit_packing.h"
#include "format/code_block.h"
#include "format/families.h"
#include "format/gain.h"
#include "format/lloyd_max.h"
#include "format/name_reader.h"

namespace kvant {
namespace {

constexpr int kMaxLevels = 32;
using Levels = std::array<float, kMaxLevels>;

constexpr std::size_t lm_page_bytes(int bits, int d) {
  return static_cast<std::size_t>(kPageTokens) * (d * bits / 8 + 2);
}
static_assert(lm_page_bytes(4, 128) == 8448 && lm_page_bytes(2, 64) == 2304 && lm_page_bytes(3, 128) == 6400);

// Computes codes[i], the number of boundaries below values[i] * reciprocal. There are n boundaries.
KVANT_SIMD_CLONES void count_boundaries(const float* values, int d, double reciprocal,
                                        const float* boundaries, int n, std::uint16_t* codes) {
  std::array<float, kMaxHeadDim> scaled;
  std::array<std::int32_t, kMaxHeadDim> below;
  for (int i = 0; i < d; ++i) {
    scaled[i] = static_cast<float>(values[i] * reciprocal);
    below[i] = 0;
  }
  for (int j = 0; j < n; ++j) {
    const float boundary = boundaries[j];
    for (int i = 0; i < d; ++i) below[i] += scaled[i] > boundary ? 1 : 0;
  }
  for (int i = 0; i < d; ++i) codes[i] = static_cast<std::uint16_t>(below[i]);
}

// Computes values[i] = levels[code of channel i] * gain.
KVANT_SIMD_CLONES void look_up(const std::byte* packed, int d, int bits, const Levels& levels, float gain,
                               float* values) {
  with_code_bits(
      bits, [&](auto width) __attribute__((always_inline)) {
        constexpr int kBits = decltype(width)::value;
        if constexpr (kBits > 5) {
          KVANT_CHECK(false, "lm codes have at most 5 bits");
        } else {
          for (int i = 0; i < d; i += kCodeBlock) {
            std::array<std::int32_t, kCodeBlock> codes;
            unpack_block<kBits>(packed + i / kCodeBlock * kBits, codes.data());
            for (int j = 0; j < kCodeBlock; ++j) values[i + j] = levels[codes[j]] * gain;
          }
        }
      });
}

class LmFormat : public RowWiseFormat {
 public:
  LmFormat(const std::string& name, int bits, GainRule rule)
      : RowWiseFormat(name), bits_(bits), rule_(rule), exact_levels_(lloyd_max_levels(bits)) {
    std::copy(exact_levels_.begin(), exact_levels_.end(), levels_.begin());
    for (std::size_t i = 0; i + 1 < exact_levels_.size(); ++i)
      boundaries_[i] = static_cast<float>((exact_levels_[i] + exact_levels_[i + 1]) / 2);
  }

  std::size_t page_bytes(int head_dim) const override { return lm_page_bytes(bits_, head_dim); }
  RowParts row_parts(int head_dim) const override {
    return {static_cast<std::size_t>(head_dim) * bits_ / 8, 2};
  }

  void encode_rows(const float* values, int first, int n, const PageContext& context,
                   std::byte* page) const override {
    const int d = context.head_dim;
    const Levels levels = levels_for(d);
    std::array<std::uint16_t, kMaxHeadDim> codes;
    std::array<float, kMaxHeadDim> shape;
    for (int token = first; token < first + n; ++token) {
      const float* row = values + static_cast<std::ptrdiff_t>(token - first) * d;
      const double length = norm(row, d);
      const double reciprocal = length > 0 ? std::sqrt(static_cast<double>(d)) / length : 0;
      count_boundaries(row, d, reciprocal, boundaries_.data(), (1 << bits_) - 1, codes.data());
      for (int i = 0; i < d; ++i) shape[i] = levels[codes[i]];
      const std::uint16_t gain = fit_gain(row, shape.data(), d, rule_);
      pack_codes(codes.data(), d, bits_, codes_of(page, token, d));
      std::memcpy(gain_of(page, token, context), &gain, sizeof gain);
    }
  }

  void decode(const std::byte* page, int n_tokens, const PageContext& context, float* values) const override {
    const int d = context.head_dim;
    const Levels levels = levels_for(d);
    for (int token = 0; token < n_tokens; ++token) {
      std::uint16_t gain;
      std::memcpy(&gain, gain_of(page, token, context), sizeof gain);
      look_up(codes_of(page, token, d), d, bits_, levels, float_from_f16(gain),
              values + static_cast<std::ptrdiff_t>(token) * d);
    }
  }

  // GPU kernels fit the other two gains, so pages with gains of GainRule::length have no description.
  std::optional<FormatDescription> describe() const override {
    if (rule_ == GainRule::length) return std::nullopt;
    FormatDescription description;
    description.page.kind = CodeKind::level;
    description.page.bits = bits_;
    description.page.factor = TokenFactor::half;
    description.page.unbiased = rule_ == GainRule::unbiased;
    description.levels = exact_levels_;
    description.of_unit_vectors = true;
    return description;
  }
  std::optional<CodeScheme> code_scheme(int /*head_dim*/) const override {
    return CodeScheme{.meaning = CodeMeaning::level,
                      .bits = bits_,
                      .group_bytes = bits_,
                      .group_channels = kCodeBlock,
                      .token_groups = 1};
  }

  // Rounding the levels to bytes moves a level by at most 1.2 % of a standard deviation, an eighth of lm4's
  // own error.
  CodeTable code_table(const PageContext& context) const override {
    CodeTable table;
    const float largest = levels_[(1 << bits_) - 1];
    for (int code = 0; code < 1 << bits_; ++code)
      table.biased.push_back(biased_byte(levels_[code] / largest * 127));
    table.biased.resize(kMaxLevels);
    table.scale = largest / 127 / std::sqrt(static_cast<float>(context.head_dim));
    return table;
  }

  void read_parameters(const std::byte* page, const PageContext& context, const CodeTable& table,
                       CodeParameters& parameters) const override {
    parameters.token_scale.resize(kPageTokens);
    float_row_from_f16(gain_of(page, 0, context), parameters.token_scale.data(), context.page_tokens);
    for (float& scale : parameters.token_scale) scale *= table.scale;
  }

 private:
  template <class Byte>
  Byte* codes_of(Byte* page, int token, int d) const {
    return page + static_cast<std::ptrdiff_t>(token) * (d * bits_ / 8);
  }
  template <class Byte>
  Byte* gain_of(Byte* page, int token, const PageContext& context) const {
    return codes_of(page, context.page_tokens, context.head_dim) + 2 * static_cast<std::ptrdiff_t>(token);
  }

  // Returns the levels of N(0, 1 / d).
  Levels levels_for(int d) const {
    Levels levels = levels_;
    const float deviation = 1 / std::sqrt(static_cast<float>(d));
    for (float& level : levels) level *= deviation;
    return levels;
  }

  int bits_;
  GainRule rule_;
  std::vector<double> exact_levels_;  // levels of N(0, 1)
  Levels levels_{};                   // exact_levels_ as F32
  Levels boundaries_{};               // The midpoints of neighbouring levels, one fewer than levels.
};

std::unique_ptr<Format> parse_lm(const std::string& name) {
  NameReader reader(name);
  if (!reader.take("lm")) return nullptr;
  const int bits = reader.take_number();
  const GainRule rule = reader.take("u")   ? GainRule::unbiased
                        : reader.take("n") ? GainRule::length
                                           : GainRule::least_squares;
  if (!reader.at_end() || bits < 2 || bits > 5) return nullptr;
  return std::make_unique<LmFormat>(name, bits, rule);
}

}  // namespace

const FormatFamily& lm_family() {
  static const FormatFamily family{
      "lm<B>[u|n]",
      "TurboQuant: Lloyd-Max levels of B bits (2 to 5) for the unit vector, f16 "
      "gain per token; u: unbiased gain; n: gain that keeps the length",
      {"lm2", "lm3", "lm4", "lm5", "lm2u", "lm3u", "lm4u", "lm5u", "lm3n", "lm4n"},
      parse_lm};
  return family;
}

}  // namespace kvant
