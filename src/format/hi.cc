// hi<h>-tok<B>g<N> mixes two precisions within a token, as ResQ does. The first h channels of a token are
// stored in bf16, and h is in 1 .. 32. The other channels are stored token-wise with B bits, as the
// asymmetric tok<B>g<N> does. The format suits values in the basis of their principal directions (transform
// pca), where the first channels have the largest variance. ResQ's share of 3.125 % is h = 4 at d = 128 and h
// = 2 at d = 64.
//
// Bytes of a page, d channels, m = d - h coded ones (none if d <= h), n = ceil(m / N) groups:
//   high     [kPageTokens][h]  bf16: channels 0 .. h - 1
//   codes    [kPageTokens][m]  B bits each, a little-endian bit stream (bit_packing.h):
//                              ceil(m * B / 8) bytes a token, spare bits zero
//   scales   [kPageTokens][n]  f16
//   offsets  [kPageTokens][n]  f16
// Bits per value: (16 h + B m + 32 n) / d, and up to 7 / d for the spare bits.
//
// Coded channel i, counted from 0, is channel h + i and belongs to group i / N; value = offset + code *
// scale, as in tok.cc. The errors are the errors of bf16 (relative 2^-8) and of tok. The format is row-wise
// (format.h), so left-out tokens are stored like all others.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/float16.h"
#include "format/affine_row.h"
#include "format/bit_packing.h"
#include "format/code_block.h"
#include "format/families.h"
#include "format/name_reader.h"

namespace kvant {
namespace {

constexpr int kMaxHigh = 32;
constexpr int kWidths[] = {1, 2, 3, 4, 5, 6, 8};

struct HiShape {
  int high;   // h, the number of channels in bf16
  int bits;   // B, the bits per code
  int group;  // N, the number of channels of a group, a multiple of 8

  constexpr int high_of(int d) const { return std::min(high, d); }
  constexpr int coded(int d) const { return d - high_of(d); }
  constexpr int groups(int d) const { return (coded(d) + group - 1) / group; }
  constexpr std::size_t row_bytes(int d) const { return packed_bytes(coded(d), bits); }
  constexpr std::size_t page_bytes(int d) const {
    return kPageTokens * (2 * high_of(d) + row_bytes(d) + 4 * groups(d));
  }
};
static_assert(HiShape{4, 2, 128}.page_bytes(128) == 128 * (8 + 31 + 4));
static_assert(HiShape{2, 2, 64}.page_bytes(64) == 128 * (4 + 16 + 4));

// Locates the parts of a page of d channels.
template <class Byte>
struct HiPage {
  Byte* page;
  HiShape shape;
  int d;
  int tokens;  // capacity of the page in tokens

  Byte* high(int token) const { return page + std::ptrdiff_t{2} * token * shape.high_of(d); }
  Byte* codes(int token) const {
    return high(tokens) + static_cast<std::ptrdiff_t>(token * shape.row_bytes(d));
  }
  Byte* scale(int token, int group) const {
    return codes(tokens) + 2 * (static_cast<std::ptrdiff_t>(token) * shape.groups(d) + group);
  }
  Byte* offset(int token, int group) const { return scale(tokens, 0) + (scale(token, group) - scale(0, 0)); }
};

// encode_affine_row works on 8 channels at a time, so rows are padded to a multiple of 8.
int whole_blocks(int n) {
  return (n + kCodeBlock - 1) / kCodeBlock * kCodeBlock;
}

using Row = std::array<float, kMaxHeadDim>;
using PackedRow = std::array<std::byte, kMaxHeadDim>;

// Holds the scale and the offset of each coded channel.
struct GridRow {
  Row scale{};
  Row offset{};

  void fill(int first, int n, const AffineGroup& group) {
    std::fill_n(scale.begin() + first, n, float_from_f16(group.scale));
    std::fill_n(offset.begin() + first, n, float_from_f16(group.offset));
  }
};

class HiFormat : public RowWiseFormat {
 public:
  HiFormat(const std::string& name, const HiShape& shape)
      : RowWiseFormat(name), shape_(shape), plain_(plain_family().parse("bf16")) {}

  std::size_t page_bytes(int head_dim) const override { return shape_.page_bytes(head_dim); }
  RowParts row_parts(int head_dim) const override {
    const std::size_t parameter = 2 * static_cast<std::size_t>(shape_.groups(head_dim));
    return {2 * static_cast<std::size_t>(shape_.high_of(head_dim)), shape_.row_bytes(head_dim), parameter,
            parameter};
  }

  void encode_rows(const float* values, int first, int n, const PageContext& context,
                   std::byte* page) const override {
    const int d = context.head_dim;
    const HiPage<std::byte> out{page, shape_, d, context.page_tokens};
    for (int row = 0; row < n; ++row) {
      const float* token = values + static_cast<std::ptrdiff_t>(row) * d;
      plain_->encode_rows(token, first + row, 1, high_context(context), page);
      encode_coded(token + shape_.high_of(d), first + row, out);
    }
  }

  void decode(const std::byte* page, int n_tokens, const PageContext& context, float* values) const override {
    const int d = context.head_dim;
    const HiPage<const std::byte> in{page, shape_, d, context.page_tokens};
    for (int token = 0; token < n_tokens; ++token) {
      float* row = values + static_cast<std::ptrdiff_t>(token) * d;
      plain_->decode(in.high(token), 1, high_context(context), row);
      decode_coded(in, token, row + shape_.high_of(d));
    }
  }

 private:
  PageContext high_context(const PageContext& context) const {
    return {shape_.high_of(context.head_dim), context.constants};
  }

  void encode_coded(const float* values, int token, const HiPage<std::byte>& out) const {
    const int m = shape_.coded(out.d);
    if (m == 0) return;
    const int blocks = whole_blocks(m);
    Row row;
    std::copy_n(values, m, row.begin());
    std::fill(row.begin() + m, row.begin() + blocks, row[m - 1]);  // Padding must not widen the range.

    GridRow grid;
    for (int group = 0; group < shape_.groups(out.d); ++group) {
      const int begin = group * shape_.group;
      const int size = std::min(shape_.group, blocks - begin);
      const auto [low, high] = extremes(row.data() + begin, size);
      const AffineGroup fitted = fit_affine_group(low, high, shape_.bits);
      std::memcpy(out.scale(token, group), &fitted.scale, 2);
      std::memcpy(out.offset(token, group), &fitted.offset, 2);
      grid.fill(begin, size, fitted);
    }
    Row reciprocal;
    reciprocal_row(grid.scale.data(), m, reciprocal.data());
    std::fill(reciprocal.begin() + m, reciprocal.begin() + blocks, 0.0F);  // Codes of the padding are 0.
    PackedRow packed;
    encode_affine_row(row.data(), blocks, shape_.bits, reciprocal.data(), grid.offset.data(), packed.data());
    std::memcpy(out.codes(token), packed.data(), shape_.row_bytes(out.d));
  }

  void decode_coded(const HiPage<const std::byte>& in, int token, float* values) const {
    const int m = shape_.coded(in.d);
    const int blocks = whole_blocks(m);
    GridRow grid;
    for (int group = 0; group < shape_.groups(in.d); ++group) {
      AffineGroup stored;
      std::memcpy(&stored.scale, in.scale(token, group), 2);
      std::memcpy(&stored.offset, in.offset(token, group), 2);
      const int begin = group * shape_.group;
      grid.fill(begin, std::min(shape_.group, blocks - begin), stored);
    }
    PackedRow packed{};
    std::memcpy(packed.data(), in.codes(token), shape_.row_bytes(in.d));
    Row row;
    decode_affine_row(packed.data(), blocks, shape_.bits, grid.scale.data(), grid.offset.data(), row.data());
    std::copy_n(row.begin(), m, values);
  }

  HiShape shape_;
  std::unique_ptr<Format> plain_;  // The bf16 format, which stores the first h channels.
};

std::unique_ptr<Format> parse_hi(const std::string& name) {
  NameReader reader(name);
  if (!reader.take("hi")) return nullptr;
  const int high = reader.take_number();
  if (!reader.take("-tok")) return nullptr;
  const int bits = reader.take_number();
  if (!reader.take("g")) return nullptr;
  const int group = reader.take_number();
  const bool known_width = std::find(std::begin(kWidths), std::end(kWidths), bits) != std::end(kWidths);
  const bool known_group = group >= kCodeBlock && group <= kMaxHeadDim && group % kCodeBlock == 0;
  if (!reader.at_end() || high < 1 || high > kMaxHigh || !known_width || !known_group) return nullptr;
  return std::make_unique<HiFormat>(name, HiShape{high, bits, group});
}

}  // namespace

const FormatFamily& hi_family() {
  static const FormatFamily family{
      "hi<h>-tok<B>g<N>",
      "ResQ: the first h channels in bf16, the others in B bits; groups of N channels of a token",
      {"hi4-tok2g128", "hi2-tok2g64", "hi4-tok3g128", "hi4-tok4g128", "hi2-tok4g64", "hi1-tok1g32",
       "hi32-tok8g32"},
      parse_hi};
  return family;
}

}  // namespace kvant
