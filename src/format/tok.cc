// tok<B>g<N>[s|c<P>[l]] is token-wise quantization, the common scheme of serving engines. Each token's
// channels form groups of N. The last group may be shorter, and N > d means one group of d channels. Each
// group has its own uniform grid of 2^B values. B is 1, 2, 3, 4, 5, 6 or 8.
//
// Bytes of a page, d channels, n = ceil(d / N) groups:
//   codes    [kPageTokens][d]  B bits each, a little-endian bit stream (bit_packing.h): d * B / 8 bytes
//                              a token
//   scales   [kPageTokens][n]  f16
//   offsets  [kPageTokens][n]  f16, asymmetric only
// Bits per value: B + 32 n / d, or B + 16 n / d if symmetric.
//
// Asymmetric (KIVI's and QuaRot's token-wise grid): value = offset + code * scale, with offset = f16(min) and
//   scale = f16((max - offset) / (2^B - 1)). Error <= scale / 2, plus f16's rounding of offset and scale.
// Symmetric (s): value = (code - 2^(B-1)) * scale.
//   B = 1: value = +-scale, with scale = f16(mean |x|); the code is 1 for x >= 0.
//   B = 2 .. 6: scale = f16(-x* / 2^(B-1)), x* the value of largest magnitude. x* falls on the lowest code,
//   so no code is wasted (as in llama.cpp's q4_0; for 4 bits and Gaussian values, the RMS error is 11 %
//   smaller than with max / 7). Error <= |scale| / 2, but up to |scale| for values that are nearly as large
//   as x* and have the opposite sign.
//   B = 8: scale = f16(max |x| / 127), codes 1 .. 255: signed bytes that can be negated. Error <= scale / 2.
// Clipped (c<P>, asymmetric; OSCAR, arXiv 2605.17757): the token's values are first clamped to +-t. t is
//   the magnitude of rank floor(P d / 100) among the token's d magnitudes, counted from 0. P: 50 to 99.
// Clipped with Lloyd-Max steps (c<P>l, B = 2; OSCAR's later code): after the clamp, the values of a
//   group have the mean m and the standard deviation s. scale = f16(1.16 * 1.00637 s), offset = f16(m - 1.5
//   scale). The code of x is the number of thresholds m - 0.98107 s, m, m + 0.98107 s that x reaches. The
//   thresholds are not the midpoints of the values, and the constants are the authors'.
//
// A constant group is exact to f16. Scales below 2^-25 are stored as 0, so the group decodes to its offset.
// Scales and offsets saturate at 65504, and codes at the ends of the grid, so decoded values are always
// finite. The format is row-wise (format.h), because no other token shares a token's groups. Left-out tokens
// are therefore stored like all others.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>

#include <fmt/format.h>

#include "base/float16.h"
#include "base/simd_clones.h"
#include "format/affine_row.h"
#include "format/bit_packing.h"
#include "format/code_block.h"
#include "format/families.h"
#include "format/name_reader.h"

namespace kvant {
namespace {

struct TokShape {
  int bits;   // B, the bits of a code
  int group;  // N, the number of channels of a group, a multiple of 8
  bool symmetric;
  int clip = 0;             // P in percent, or 0 if the format does not clip
  bool deviations = false;  // The suffix l: steps and thresholds are multiples of the standard deviation.

  int groups(int d) const { return (d + group - 1) / group; }
};

constexpr std::size_t tok_page_bytes(int bits, int group, bool symmetric, int d) {
  const int groups = (d + group - 1) / group;
  return static_cast<std::size_t>(kPageTokens) * (d * bits / 8 + groups * (symmetric ? 2 : 4));
}
static_assert(tok_page_bytes(4, 128, false, 128) == 8704 && tok_page_bytes(4, 128, false, 64) == 4608);
static_assert(tok_page_bytes(2, 128, false, 128) == 4608 && tok_page_bytes(4, 32, true, 128) == 9216);
static_assert(tok_page_bytes(8, 32, true, 64) == 8704 && tok_page_bytes(3, 32, false, 80) == 5376);

constexpr int kMaxGroups = kMaxHeadDim / kCodeBlock;
constexpr int kLeastClip = 50, kMostClip = 99;  // percent
constexpr int kWidths[] = {1, 2, 3, 4, 5, 6, 8};

float mean_magnitude(const float* x, int n) {
  double sum = 0;  // The sum cannot overflow in double.
  for (int i = 0; i < n; ++i) sum += std::fabs(x[i]);
  return static_cast<float>(sum / n);
}

// Fits a group's grid: an f16 scale, and an offset if the grid is asymmetric.
AffineGroup fit_group(const float* x, int n, const TokShape& shape) {
  if (shape.symmetric && shape.bits == 1) return {f16_from_float_saturated(mean_magnitude(x, n)), 0};
  const auto [low, high] = extremes(x, n);
  if (!shape.symmetric) return fit_affine_group(low, high, shape.bits);
  const float extreme = high > -low ? high : low;
  const float scale =
      shape.bits == 8 ? std::fabs(extreme) / 127 : -extreme / static_cast<float>(1 << (shape.bits - 1));
  return {f16_from_float_saturated(scale), 0};
}

// Clamps x [d] to +-t, where t is the magnitude of rank floor(percent * d / 100) in x, counted from 0.
void clip_row(const float* x, int d, int percent, float* clipped) {
  std::array<float, kMaxHeadDim> magnitudes;
  std::transform(x, x + d, magnitudes.begin(), [](float v) { return std::fabs(v); });
  const auto rank = magnitudes.begin() + static_cast<std::ptrdiff_t>(percent) * d / 100;
  std::nth_element(magnitudes.begin(), rank, magnitudes.begin() + d);
  std::transform(x, x + d, clipped, [limit = *rank](float v) { return std::clamp(v, -limit, limit); });
}

// Formats with the suffix l have this step and this threshold, in standard deviations of a group. Both
// numbers are of OSCAR's authors.
constexpr double kStepInDeviations = 1.16 * 1.00637, kThreshold = 0.98107;

// Fits the grid of the suffix l to x [n], and computes the codes [n].
AffineGroup fit_deviations(const float* x, int n, std::uint16_t* codes) {
  double sum = 0, squares = 0;
  for (int i = 0; i < n; ++i) sum += x[i];
  const double mean = sum / n;
  for (int i = 0; i < n; ++i) squares += (x[i] - mean) * (x[i] - mean);
  const double deviation = std::sqrt(squares / n);
  const double step = std::min<double>(kStepInDeviations * deviation, kF16Max);
  for (int i = 0; i < n; ++i) {
    const double z = x[i] - mean, threshold = kThreshold * deviation;
    codes[i] = (z >= -threshold ? 1 : 0) + (z >= 0 ? 1 : 0) + (z >= threshold ? 1 : 0);
  }
  const double offset = std::clamp<double>(mean - 1.5 * step, -kF16Max, kF16Max);
  return {f16_from_float_saturated(static_cast<float>(step)),
          f16_from_float_saturated(static_cast<float>(offset))};
}

// Represents a symmetric or asymmetric grid as value = offset + code * step.
struct Grid {
  float step, offset;
};

Grid as_grid(float scale, float offset, const TokShape& shape) {
  if (!shape.symmetric) return {scale, offset};
  if (shape.bits == 1) return {2 * scale, -scale};
  return {scale, -scale * static_cast<float>(1 << (shape.bits - 1))};
}

Grid grid_of(const AffineGroup& group, const TokShape& shape) {
  return as_grid(float_from_f16(group.scale), float_from_f16(group.offset), shape);
}

// Holds one grid for each channel of a token.
struct GridRow {
  std::array<float, kMaxHeadDim> step;
  std::array<float, kMaxHeadDim> offset;

  void fill(int first, int n, const Grid& grid) {
    std::fill_n(step.begin() + first, n, grid.step);
    std::fill_n(offset.begin() + first, n, grid.offset);
  }
};

// Locates the parts of a page of d channels.
template <class Byte>
struct TokPage {
  Byte* page;
  TokShape shape;
  int d;
  int tokens;  // capacity of the page in tokens

  Byte* codes(int token) const { return page + static_cast<std::ptrdiff_t>(token) * (d * shape.bits / 8); }
  Byte* scale(int token, int group) const {
    return codes(tokens) + 2 * (static_cast<std::ptrdiff_t>(token) * shape.groups(d) + group);
  }
  Byte* offset(int token, int group) const { return scale(tokens, 0) + (scale(token, group) - scale(0, 0)); }
};

// Transposes f16 [kPageTokens][groups] to [groups][kPageTokens]. If `Groups` is not 0, `Groups` is the number
// of groups, so the loops vectorize.
template <int Groups>
[[gnu::always_inline]] inline void columns_of(const std::byte* rows, int groups, std::uint16_t* columns) {
  const int n = Groups == 0 ? groups : Groups;
  for (int group = 0; group < n; ++group) {
    for (int token = 0; token < kPageTokens; ++token)
      std::memcpy(columns + group * kPageTokens + token, rows + 2 * (token * n + group), 2);
  }
}
KVANT_SIMD_CLONES void transpose(const std::byte* rows, int groups, std::uint16_t* columns) {
  switch (groups) {
    case 2:
      return columns_of<2>(rows, groups, columns);
    case 4:
      return columns_of<4>(rows, groups, columns);
    default:
      columns_of<0>(rows, groups, columns);
  }
}

// Transposes f16 [kPageTokens][groups] to floats [groups][kPageTokens].
void widen_columns(const std::byte* rows, int groups, std::vector<float>& columns) {
  const std::size_t n = static_cast<std::size_t>(kPageTokens) * groups;
  columns.resize(n);
  if (groups == 1) return float_row_from_f16(rows, columns.data(), n);
  std::array<std::uint16_t, kMaxGroups * kPageTokens> stored;
  transpose(rows, groups, stored.data());
  float_row_from_f16(stored.data(), columns.data(), n);
}

KVANT_SIMD_CLONES void scale_grids(const Grid& unit, int n, float* step, float* offset) {
  for (int i = 0; i < n; ++i) {
    offset[i] = unit.offset * step[i];
    step[i] *= unit.step;
  }
}

// Decodes n groups of bytes as (code - 128) * scale of the group. Attention reads an 8-bit tail for every
// token, so this case has special, fast code.
KVANT_SIMD_CLONES void decode_byte_groups(const std::byte* codes, const float* scales, int n, int group,
                                          float* values) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(codes);
  for (int g = 0; g < n; ++g) {
    const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(g) * group;
    for (int i = 0; i < group; ++i)
      values[first + i] = static_cast<float>(static_cast<int>(bytes[first + i]) - 128) * scales[g];
  }
}

class TokFormat : public RowWiseFormat {
 public:
  TokFormat(const std::string& name, const TokShape& shape) : RowWiseFormat(name), shape_(shape) {}

  std::size_t page_bytes(int head_dim) const override {
    return tok_page_bytes(shape_.bits, shape_.group, shape_.symmetric, head_dim);
  }
  RowParts row_parts(int head_dim) const override {
    const std::size_t parameter = 2 * static_cast<std::size_t>(shape_.groups(head_dim));
    return {static_cast<std::size_t>(head_dim) * shape_.bits / 8, parameter,
            shape_.symmetric ? 0 : parameter};
  }

  void encode_rows(const float* values, int first, int n, const PageContext& context,
                   std::byte* page) const override {
    const int d = context.head_dim;
    const TokPage<std::byte> out{page, shape_, d, context.page_tokens};
    GridRow grids;
    std::array<float, kMaxHeadDim> reciprocal, clipped;
    std::array<std::uint16_t, kMaxHeadDim> codes;
    for (int row = 0; row < n; ++row) {
      const float* token = values + static_cast<std::ptrdiff_t>(row) * d;
      if (shape_.clip > 0) {
        clip_row(token, d, shape_.clip, clipped.data());
        token = clipped.data();
      }
      for (int group = 0; group < shape_.groups(d); ++group) {
        const int begin = group * shape_.group;
        const int size = std::min(shape_.group, d - begin);
        const AffineGroup fitted = shape_.deviations
                                       ? fit_deviations(token + begin, size, codes.data() + begin)
                                       : fit_group(token + begin, size, shape_);
        std::memcpy(out.scale(first + row, group), &fitted.scale, 2);
        if (!shape_.symmetric) std::memcpy(out.offset(first + row, group), &fitted.offset, 2);
        grids.fill(begin, size, grid_of(fitted, shape_));
      }
      if (shape_.deviations) {
        pack_codes(codes.data(), d, shape_.bits, out.codes(first + row));
        continue;
      }
      reciprocal_row(grids.step.data(), d, reciprocal.data());
      encode_affine_row(token, d, shape_.bits, reciprocal.data(), grids.offset.data(),
                        out.codes(first + row));
    }
  }

  void decode(const std::byte* page, int n_tokens, const PageContext& context, float* values) const override {
    const int d = context.head_dim;
    const TokPage<const std::byte> in{page, shape_, d, context.page_tokens};
    const int group = std::min(shape_.group, d);
    if (shape_.bits == 8 && shape_.symmetric && d % group == 0) {
      std::array<float, kMaxGroups * kPageTokens> scales;
      const int n = n_tokens * shape_.groups(d);
      float_row_from_f16(in.scale(0, 0), scales.data(), n);
      return decode_byte_groups(page, scales.data(), n, group, values);
    }
    GridRow grids;
    for (int token = 0; token < n_tokens; ++token) {
      for (int group = 0; group < shape_.groups(d); ++group) {
        AffineGroup stored;
        std::memcpy(&stored.scale, in.scale(token, group), 2);
        if (!shape_.symmetric) std::memcpy(&stored.offset, in.offset(token, group), 2);
        const int begin = group * shape_.group;
        grids.fill(begin, std::min(shape_.group, d - begin), grid_of(stored, shape_));
      }
      decode_affine_row(in.codes(token), d, shape_.bits, grids.step.data(), grids.offset.data(),
                        values + static_cast<std::ptrdiff_t>(token) * d);
    }
  }

  std::optional<FormatDescription> describe() const override {
    FormatDescription description;
    description.page.bits = shape_.bits;
    description.page.grid = GridAxis::of_tokens;
    description.page.group = shape_.group;
    description.page.symmetric = shape_.symmetric;
    description.page.clips = shape_.clip > 0;
    return description;
  }
  std::optional<CodeScheme> code_scheme(int head_dim) const override {
    if (head_dim % std::min(shape_.group, head_dim) != 0) return std::nullopt;  // The last group is shorter.
    return CodeScheme{.bits = shape_.bits,
                      .group_bytes = shape_.bits,
                      .group_channels = kCodeBlock,
                      .token_groups = shape_.groups(head_dim)};
  }

  void read_parameters(const std::byte* page, const PageContext& context, const CodeTable&,
                       CodeParameters& parameters) const override {
    const int d = context.head_dim, groups = shape_.groups(d), n = kPageTokens * groups;
    const TokPage<const std::byte> in{page, shape_, d, context.page_tokens};
    widen_columns(in.scale(0, 0), groups, parameters.token_scale);
    if (!shape_.symmetric) {
      widen_columns(in.offset(0, 0), groups, parameters.token_offset);
    } else {
      parameters.token_offset.resize(n);
      scale_grids(as_grid(1, 0, shape_), n, parameters.token_scale.data(), parameters.token_offset.data());
    }
  }

 private:
  TokShape shape_;
};

std::unique_ptr<Format> parse_tok(const std::string& name) {
  NameReader reader(name);
  if (!reader.take("tok")) return nullptr;
  const int bits = reader.take_number();
  if (!reader.take("g")) return nullptr;
  const int group = reader.take_number();
  const bool symmetric = reader.take("s");
  const bool clips = !symmetric && reader.take("c");
  const int clip = clips ? reader.take_number() : 0;
  const bool deviations = clips && bits == 2 && reader.take("l");
  const bool known_width = std::find(std::begin(kWidths), std::end(kWidths), bits) != std::end(kWidths);
  if (!reader.at_end() || !known_width || group < kCodeBlock || group > kMaxHeadDim ||
      group % kCodeBlock != 0 || (clips && (clip < kLeastClip || clip > kMostClip))) {
    return nullptr;
  }
  return std::make_unique<TokFormat>(name, TokShape{bits, group, symmetric, clip, deviations});
}

std::vector<std::string> tok_members() {
  std::vector<std::string> members;
  for (const char* pattern : {"tok{}g32", "tok{}g64", "tok{}g128", "tok{}g32s", "tok{}g128s"}) {
    for (const int bits : kWidths) members.push_back(fmt::format(fmt::runtime(pattern), bits));
  }
  for (const char* clipped : {"tok2g128c92", "tok2g128c96", "tok2g128c92l", "tok2g128c96l"})
    members.emplace_back(clipped);
  return members;
}

}  // namespace

const FormatFamily& tok_family() {
  static const FormatFamily family{"tok<B>g<N>[s|c<P>[l]]",
                                   "B bits; groups of N channels of a token share an f16 scale and offset; "
                                   "s: symmetric, f16 scale only; c: clipped at P % of magnitudes; "
                                   "l: steps in standard deviations",
                                   tok_members(), parse_tok};
  return family;
}

}  // namespace kvant
