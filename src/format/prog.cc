// prog<B> is progressive quantization (TurboAttention, section 3.1, Algorithm 1); B is 2, 3, 4 or 5. Blocks
// of 64 tokens become INT8 with one scale per block. The INT8 numbers then become B-bit codes channel by
// channel, so attention can run on integers throughout.
//
// Bytes of a page, d channels, 2 blocks:
//   codes    [kPageTokens][d]  B bits each, a little-endian bit stream (bit_packing.h): d * B / 8 bytes
//                              a token
//   steps    [2][d]            u8: si, 1 .. 80
//   zeros    [2][d]            i8: zi
//   scales   [2]               f32: s = max |x| over the block's tokens that are not left out / 119
// Bits per value: B + 0.25 + 0.5 / d.
//
// First stage: q1 = round(x / s), in -119 .. 119. Second stage, over the tokens of a block and channel that
// are not left out: si = max(1, ceil((max q1 - min q1) / (2^B - 1))), zi = min q1, code = clamp(round((q1 -
// zi) / si), 0, 2^B - 1). Decoded: q1' = clamp(code * si + zi, -127, 127), value = q1' * s. The error is at
// most s * (si + 1) / 2. Halves are rounded up.
//
// prog<B>-paper rounds as Algorithm 1 prints it, for the ablation. si is rounded for K, which clips a
// channel's range when the range is small, and rounded up for V. The zero point is kept in units of si: zi =
// round(min q1 / si) for K and ceil(min q1 / si) for V, code = clamp(round(q1 / si) - zi, 0, 2^B - 1), q1' =
// clamp((code + zi) * si, -127, 127). Algorithm 2 prints code * si + zi, which would not invert this
// encoding.
//
// Left-out tokens widen no range, and their integers and codes are clamped. Blocks whose tokens are all left
// out, or whose values are all below 2^-100, decode to zeros. Larger magnitudes than 3e38 count as 3e38 in s,
// so every decoded value is finite. A constant block is exact to F32's rounding. The format is integral
// (format.h), and its integers are q1'.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/simd_clones.h"
#include "format/affine_row.h"
#include "format/code_block.h"
#include "format/families.h"
#include "format/integer_row.h"
#include "format/name_reader.h"

namespace kvant {
namespace {

constexpr int kBlockTokens = kIntegerBlock;
constexpr int kBlocks = kPageTokens / kBlockTokens;

constexpr std::size_t prog_page_bytes(int bits, int d) {
  return static_cast<std::size_t>(kPageTokens) * d * bits / 8 +
         kBlocks * (2 * static_cast<std::size_t>(d) + 4);
}
static_assert(prog_page_bytes(4, 128) == 8712 && prog_page_bytes(4, 64) == 4360);
static_assert(prog_page_bytes(2, 128) == 4616 && prog_page_bytes(3, 64) == 3336);

constexpr float kClamp = 127;  // largest magnitude of the decoded integers
constexpr float kTiny = 0x1p-100F;
constexpr float kHuge = 3e38F;  // kHuge * 127 / 119 is still finite.

enum class Rounding { ours, paper };

// Locates the parts of a page of d channels.
template <class Byte>
struct ProgPage {
  Byte* page;
  int bits;
  int d;

  Byte* codes(int token) const { return page + static_cast<std::ptrdiff_t>(token) * (d * bits / 8); }
  Byte* steps(int block) const { return codes(kPageTokens) + static_cast<std::ptrdiff_t>(block) * d; }
  Byte* zeros(int block) const { return steps(kBlocks + block); }
  Byte* scale(int block) const { return steps(2 * kBlocks) + static_cast<std::ptrdiff_t>(block) * 4; }
};

using ChannelRow = std::array<float, kMaxHeadDim>;

// Holds the second stage's grid of one block, channel by channel: q1' = code * step + zero.
struct BlockGrid {
  ChannelRow step;
  ChannelRow zero;
};

float largest_magnitude(const float* block, int d, const TokenMask& left_out, int first_token) {
  float largest = 0;
  for (int token = 0; token < kBlockTokens; ++token) {
    if (left_out.test(first_token + token)) continue;
    const float* row = block + static_cast<std::ptrdiff_t>(token) * d;
    for (int i = 0; i < d; ++i) largest = std::max(largest, std::fabs(row[i]));
  }
  return largest < kTiny ? 0 : std::min(largest, kHuge);
}

// Decodes a token as (code * step + zero), clamped, times `scale`. A scale of 1 gives the integers
// themselves.
KVANT_SIMD_CLONES void decode_row(const std::byte* packed, int d, int bits, const BlockGrid& grid,
                                  float scale, float* values) {
  with_code_bits(
      bits, [&](auto width) __attribute__((always_inline)) {
        constexpr int kBits = decltype(width)::value;
        for (int i = 0; i < d; i += kCodeBlock) {
          std::array<std::int32_t, kCodeBlock> codes;
          unpack_block<kBits>(packed + i / kCodeBlock * kBits, codes.data());
          for (int j = 0; j < kCodeBlock; ++j) {
            const float integer = static_cast<float>(codes[j]) * grid.step[i + j] + grid.zero[i + j];
            values[i + j] = std::min(std::max(integer, -kClamp), kClamp) * scale;
          }
        }
      });
}

// Computes the steps of a block, and its zeros times its scale, as floats [d].
KVANT_SIMD_CLONES void widen_grid(const std::byte* steps, const std::byte* zeros, int d, float scale,
                                  float* wide_steps, float* wide_zeros) {
  const auto* unsigned_steps = reinterpret_cast<const std::uint8_t*>(steps);
  const auto* signed_zeros = reinterpret_cast<const std::int8_t*>(zeros);
  for (int i = 0; i < d; ++i) wide_steps[i] = static_cast<float>(unsigned_steps[i]);
  for (int i = 0; i < d; ++i) wide_zeros[i] = static_cast<float>(signed_zeros[i]) * scale;
}

// Holds si and zi of one channel.
struct ChannelCode {
  int step, zero;
};

ChannelCode fit_channel(float low, float high, int bits) {
  const float exact = (high - low) / static_cast<float>((1 << bits) - 1);
  return {std::max(1, static_cast<int>(std::ceil(exact))), static_cast<int>(low)};
}

ChannelCode fit_channel_as_printed(float low, float high, int bits, Side side) {
  const float exact = (high - low) / static_cast<float>((1 << bits) - 1);
  const auto rounded = [side](float x) { return side == Side::key ? std::floor(x + 0.5F) : std::ceil(x); };
  const int step = std::max(1, static_cast<int>(rounded(exact)));
  return {step, static_cast<int>(rounded(low / static_cast<float>(step)))};
}

class ProgFormat : public Format {
 public:
  ProgFormat(const std::string& name, int bits, Rounding rounding)
      : Format(name), bits_(bits), rounding_(rounding) {}

  std::size_t page_bytes(int head_dim) const override { return prog_page_bytes(bits_, head_dim); }

  void encode(const float* values, const TokenMask& left_out, const PageContext& context,
              std::byte* page) const override {
    const ProgPage<std::byte> out{page, bits_, context.head_dim};
    for (int block = 0; block < kBlocks; ++block) encode_block(values, block, left_out, context, out);
  }

  void decode(const std::byte* page, int n_tokens, const PageContext& context, float* values) const override {
    const ProgPage<const std::byte> in{page, bits_, context.head_dim};
    std::array<float, kBlocks> scales;
    load_scales(in, scales.data());
    decode_scaled(in, n_tokens, scales, values);
  }

  bool integral() const override { return true; }
  void decode_integers(const std::byte* page, int n_tokens, const PageContext& context, float* integers,
                       float* scales) const override {
    const ProgPage<const std::byte> in{page, bits_, context.head_dim};
    load_scales(in, scales);
    decode_scaled(in, n_tokens, {1, 1}, integers);
  }

  // Unless a token is left out, its integers do not reach the clamp with Rounding::ours, so only
  // Rounding::paper is described as clamped. A decoded integer exceeds the largest q1, at most 119, by at
  // most step / 2, and step is at most 16 for 4 bits. For fewer bits the excess is at most 2^B - 2.
  std::optional<FormatDescription> describe() const override {
    FormatDescription description;
    description.page.bits = bits_;
    description.page.grid = GridAxis::of_integers;
    description.page.factor = TokenFactor::block;
    description.page.as_printed = rounding_ == Rounding::paper;
    description.largest = kLargestInteger;
    return description;
  }
  std::optional<CodeScheme> code_scheme(int /*head_dim*/) const override {
    if (rounding_ == Rounding::paper) return std::nullopt;
    return CodeScheme{.bits = bits_,
                      .group_bytes = bits_,
                      .group_channels = kCodeBlock,
                      .token_groups = 1,
                      .channel_blocks = kBlocks};
  }

  void read_parameters(const std::byte* page, const PageContext& context, const CodeTable&,
                       CodeParameters& parameters) const override {
    const int d = context.head_dim;
    const ProgPage<const std::byte> in{page, bits_, d};
    std::array<float, kBlocks> scales;
    load_scales(in, scales.data());
    parameters.token_scale.resize(kPageTokens);
    parameters.channel_scale.resize(static_cast<std::size_t>(kBlocks) * d);
    parameters.channel_offset.resize(static_cast<std::size_t>(kBlocks) * d);
    for (int block = 0; block < kBlocks; ++block) {
      std::fill_n(parameters.token_scale.begin() + block * kBlockTokens, kBlockTokens, scales[block]);
      widen_grid(in.steps(block), in.zeros(block), d, scales[block],
                 parameters.channel_scale.data() + static_cast<std::ptrdiff_t>(block) * d,
                 parameters.channel_offset.data() + static_cast<std::ptrdiff_t>(block) * d);
    }
  }

 private:
  void encode_block(const float* values, int block, const TokenMask& left_out, const PageContext& context,
                    const ProgPage<std::byte>& out) const {
    const int d = context.head_dim;
    const int first = block * kBlockTokens;
    const float* tokens = values + static_cast<std::ptrdiff_t>(first) * d;
    const float largest = largest_magnitude(tokens, d, left_out, first);
    const float scale = largest / kLargestInteger;
    const float reciprocal = largest > 0 ? kLargestInteger / largest : 0;
    std::memcpy(out.scale(block), &scale, sizeof scale);
    fit_channels(tokens, first, reciprocal, left_out, context, out);

    const BlockGrid grid = load_grid(ProgPage<const std::byte>{out.page, bits_, d}, block);
    ChannelRow integers;
    ChannelRow step_reciprocal;
    reciprocal_row(grid.step.data(), d, step_reciprocal.data());
    for (int token = 0; token < kBlockTokens; ++token) {
      to_integer_row(tokens + static_cast<std::ptrdiff_t>(token) * d, d, reciprocal, integers.data());
      encode_affine_row(integers.data(), d, bits_, step_reciprocal.data(), grid.zero.data(),
                        out.codes(first + token));
    }
  }

  void fit_channels(const float* tokens, int first, float reciprocal, const TokenMask& left_out,
                    const PageContext& context, const ProgPage<std::byte>& out) const {
    const int d = context.head_dim;
    ChannelRow low;
    ChannelRow high;
    low.fill(kClamp);
    high.fill(-kClamp);
    ChannelRow integers;
    for (int token = 0; token < kBlockTokens; ++token) {
      if (left_out.test(first + token)) continue;
      to_integer_row(tokens + static_cast<std::ptrdiff_t>(token) * d, d, reciprocal, integers.data());
      for (int i = 0; i < d; ++i) {
        low[i] = std::min(low[i], integers[i]);
        high[i] = std::max(high[i], integers[i]);
      }
    }
    const int block = first / kBlockTokens;
    for (int i = 0; i < d; ++i) {
      ChannelCode code{1, 0};  // code of blocks whose tokens are all left out
      if (low[i] <= high[i]) {
        code = rounding_ == Rounding::ours
                   ? fit_channel(low[i], high[i], bits_)
                   : fit_channel_as_printed(low[i], high[i], bits_, context.constants.side);
      }
      out.steps(block)[i] = static_cast<std::byte>(code.step);
      out.zeros(block)[i] = static_cast<std::byte>(code.zero);
    }
  }

  // Decodes rows [n_tokens, d] of q1' * scales[block of the token].
  void decode_scaled(const ProgPage<const std::byte>& in, int n_tokens,
                     const std::array<float, kBlocks>& scales, float* rows) const {
    BlockGrid grid;
    for (int token = 0; token < n_tokens; ++token) {
      const int block = token / kBlockTokens;
      if (token % kBlockTokens == 0) grid = load_grid(in, block);
      decode_row(in.codes(token), in.d, bits_, grid, scales[block],
                 rows + static_cast<std::ptrdiff_t>(token) * in.d);
    }
  }

  static void load_scales(const ProgPage<const std::byte>& in, float* scales) {
    std::memcpy(scales, in.scale(0), kBlocks * sizeof(float));
  }

  BlockGrid load_grid(const ProgPage<const std::byte>& in, int block) const {
    std::array<std::uint8_t, kMaxHeadDim> steps;
    std::array<std::int8_t, kMaxHeadDim> zeros;
    std::memcpy(steps.data(), in.steps(block), in.d);
    std::memcpy(zeros.data(), in.zeros(block), in.d);
    BlockGrid grid;
    for (int i = 0; i < in.d; ++i) {
      grid.step[i] = static_cast<float>(steps[i]);
      grid.zero[i] = static_cast<float>(rounding_ == Rounding::ours ? zeros[i] : zeros[i] * steps[i]);
    }
    return grid;
  }

  int bits_;
  Rounding rounding_;
};

std::unique_ptr<Format> parse_prog(const std::string& name) {
  NameReader reader(name);
  if (!reader.take("prog")) return nullptr;
  const int bits = reader.take_number();
  const Rounding rounding = reader.take("-paper") ? Rounding::paper : Rounding::ours;
  if (!reader.at_end() || bits < 2 || bits > 5) return nullptr;
  return std::make_unique<ProgFormat>(name, bits, rounding);
}

}  // namespace

const FormatFamily& prog_family() {
  static const FormatFamily family{"prog<B>[-paper]",
                                   "TurboAttention: INT8 in blocks of 64 tokens, then B bits (2 to 5) per "
                                   "channel; -paper: rounds as the paper prints",
                                   {"prog2", "prog3", "prog4", "prog5", "prog2-paper", "prog4-paper"},
                                   parse_prog};
  return family;
}

}  // namespace kvant
