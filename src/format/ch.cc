// ch<B>g<N> is channel-wise quantization, as KIVI (section 3) and KVLinC (section 3) apply it to K. The
// page's tokens form groups of N (32, 64 or 128). In each group, every channel has its own uniform grid of
// 2^B values; B is 1, 2, 3, 4, 5, 6 or 8. A channel of K keeps a similar offset over many tokens, so a grid
// per channel spans a small range.
//
// Bytes of a page, d channels, n = kPageTokens / N groups:
//   codes    [kPageTokens][d]  B bits each, a little-endian bit stream (bit_packing.h): d * B / 8 bytes
//                              a token
//   scales   [n][d]            f16
//   offsets  [n][d]            f16
// Bits per value: B + 32 / N.
//
// value = offset + code * scale, with offset = f16(min) and scale = f16((max - offset) / (2^B - 1)). The
// minimum and the maximum are taken over the group's tokens that are not left out. The error is at most scale
// / 2, plus f16's rounding of offset and scale. Left-out tokens widen no range, and their codes are clamped.
// If all tokens of a group are left out, its scales and offsets are 0. A constant group is exact to f16.
// Scales below 2^-25 are stored as 0, so the group decodes to its offset. Scales and offsets saturate at
// 65504, and codes at the ends of the grid, so decoded values are always finite.
#include <algorithm>
#include <array>
#include <cstring>

#include <fmt/format.h>

#include "base/float16.h"
#include "format/affine_row.h"
#include "format/code_block.h"
#include "format/families.h"
#include "format/name_reader.h"

namespace kvant {
namespace {

constexpr std::size_t ch_page_bytes(int bits, int group, int d) {
  return static_cast<std::size_t>(d) * (kPageTokens * bits / 8 + kPageTokens / group * 4);
}
static_assert(ch_page_bytes(4, 128, 128) == 8704 && ch_page_bytes(4, 128, 64) == 4352);
static_assert(ch_page_bytes(2, 32, 128) == 6144 && ch_page_bytes(1, 64, 64) == 1536);

constexpr int kWidths[] = {1, 2, 3, 4, 5, 6, 8};
constexpr int kGroups[] = {32, 64, 128};

using ChannelRow = std::array<float, kMaxHeadDim>;

// Finds the smallest and the largest value of each channel over tokens [first, first + n) of values
// [kPageTokens, d]. Left-out tokens do not count. Returns false if all tokens are left out.
bool channel_extremes(const float* values, int first, int n, int d, const TokenMask& left_out,
                      ChannelRow& low, ChannelRow& high) {
  bool any = false;
  for (int token = first; token < first + n; ++token) {
    if (left_out.test(token)) continue;
    const float* row = values + static_cast<std::ptrdiff_t>(token) * d;
    if (!any) {
      std::copy_n(row, d, low.begin());
      std::copy_n(row, d, high.begin());
      any = true;
      continue;
    }
    for (int i = 0; i < d; ++i) {
      low[i] = row[i] < low[i] ? row[i] : low[i];
      high[i] = row[i] > high[i] ? row[i] : high[i];
    }
  }
  return any;
}

class ChFormat : public Format {
 public:
  ChFormat(const std::string& name, int bits, int group) : Format(name), bits_(bits), group_(group) {}

  std::size_t page_bytes(int head_dim) const override { return ch_page_bytes(bits_, group_, head_dim); }

  void encode(const float* values, const TokenMask& left_out, const PageContext& context,
              std::byte* page) const override {
    const int d = context.head_dim;
    const std::ptrdiff_t row_bytes = d * bits_ / 8;
    for (int first = 0; first < kPageTokens; first += group_) {
      fit_channels(values, first, d, left_out, page);
      ChannelRow scale;
      ChannelRow offset;
      ChannelRow reciprocal;
      load_parameters(page, first, d, scale, offset);
      reciprocal_row(scale.data(), d, reciprocal.data());
      for (int token = first; token < first + group_; ++token) {
        encode_affine_row(values + static_cast<std::ptrdiff_t>(token) * d, d, bits_, reciprocal.data(),
                          offset.data(), page + token * row_bytes);
      }
    }
  }

  void decode(const std::byte* page, int n_tokens, const PageContext& context, float* values) const override {
    const int d = context.head_dim;
    const std::ptrdiff_t row_bytes = d * bits_ / 8;
    ChannelRow scale;
    ChannelRow offset;
    for (int token = 0; token < n_tokens; ++token) {
      if (token % group_ == 0) load_parameters(page, token, d, scale, offset);
      decode_affine_row(page + token * row_bytes, d, bits_, scale.data(), offset.data(),
                        values + static_cast<std::ptrdiff_t>(token) * d);
    }
  }

  std::optional<FormatDescription> describe() const override {
    FormatDescription description;
    description.page.bits = bits_;
    description.page.grid = GridAxis::of_channels;
    description.page.group = group_;
    return description;
  }
  std::optional<CodeScheme> code_scheme(int /*head_dim*/) const override {
    return CodeScheme{.bits = bits_,
                      .group_bytes = bits_,
                      .group_channels = kCodeBlock,
                      .channel_blocks = kPageTokens / group_};
  }

  void read_parameters(const std::byte* page, const PageContext& context, const CodeTable&,
                       CodeParameters& parameters) const override {
    const int d = context.head_dim, n = kPageTokens / group_ * d;
    const std::byte* scales = scales_of(page, 0, d);
    parameters.channel_scale.resize(n);
    parameters.channel_offset.resize(n);
    float_row_from_f16(scales, parameters.channel_scale.data(), n);
    float_row_from_f16(scales + offsets_after_scales(d), parameters.channel_offset.data(), n);
  }

 private:
  // Returns the f16 scales [d] of the group that begins at token `first`. The offsets of that group lie
  // offsets_after_scales(d) bytes further.
  template <class Byte>
  Byte* scales_of(Byte* page, int first, int d) const {
    return page + static_cast<std::ptrdiff_t>(kPageTokens) * (d * bits_ / 8) + first / group_ * 2 * d;
  }
  std::ptrdiff_t offsets_after_scales(int d) const {
    return static_cast<std::ptrdiff_t>(kPageTokens / group_) * 2 * d;
  }

  void fit_channels(const float* values, int first, int d, const TokenMask& left_out, std::byte* page) const {
    ChannelRow low;
    ChannelRow high;
    const bool any = channel_extremes(values, first, group_, d, left_out, low, high);
    std::byte* scales = scales_of(page, first, d);
    std::byte* offsets = scales + offsets_after_scales(d);
    for (int i = 0; i < d; ++i) {
      const AffineGroup fitted = any ? fit_affine_group(low[i], high[i], bits_) : AffineGroup{};
      std::memcpy(scales + 2 * i, &fitted.scale, 2);
      std::memcpy(offsets + 2 * i, &fitted.offset, 2);
    }
  }

  void load_parameters(const std::byte* page, int first, int d, ChannelRow& scale, ChannelRow& offset) const {
    const std::byte* scales = scales_of(page, first, d);
    float_row_from_f16(scales, scale.data(), d);
    float_row_from_f16(scales + offsets_after_scales(d), offset.data(), d);
  }

  int bits_;
  int group_;  // N, tokens
};

std::unique_ptr<Format> parse_ch(const std::string& name) {
  NameReader reader(name);
  if (!reader.take("ch")) return nullptr;
  const int bits = reader.take_number();
  if (!reader.take("g")) return nullptr;
  const int group = reader.take_number();
  const bool known_width = std::find(std::begin(kWidths), std::end(kWidths), bits) != std::end(kWidths);
  const bool known_group = std::find(std::begin(kGroups), std::end(kGroups), group) != std::end(kGroups);
  if (!reader.at_end() || !known_width || !known_group) return nullptr;
  return std::make_unique<ChFormat>(name, bits, group);
}

std::vector<std::string> ch_members() {
  std::vector<std::string> members;
  for (const int group : kGroups) {
    for (const int bits : kWidths) members.push_back(fmt::format("ch{}g{}", bits, group));
  }
  return members;
}

}  // namespace

const FormatFamily& ch_family() {
  static const FormatFamily family{
      "ch<B>g<N>", "B bits; groups of N tokens (32, 64, 128) of a channel share an f16 scale and offset",
      ch_members(), parse_ch};
  return family;
}

}  // namespace kvant
