#include "format/affine_row.h"

#include <algorithm>
#include <array>

#include "base/float16.h"
#include "base/simd_clones.h"
#include "format/bit_packing.h"
#include "format/code_block.h"

namespace kvant {
namespace {

constexpr float kHalf = 0.5F;

}  // namespace

Extremes extremes(const float* values, int n) {
  std::array<float, kCodeBlock> low;
  std::array<float, kCodeBlock> high;
  std::copy_n(values, kCodeBlock, low.begin());
  std::copy_n(values, kCodeBlock, high.begin());
  for (int i = kCodeBlock; i < n; i += kCodeBlock) {
    for (int lane = 0; lane < kCodeBlock; ++lane) {
      low[lane] = std::min(low[lane], values[i + lane]);
      high[lane] = std::max(high[lane], values[i + lane]);
    }
  }
  return {*std::min_element(low.begin(), low.end()), *std::max_element(high.begin(), high.end())};
}

AffineGroup fit_affine_group(float low, float high, int bits) {
  AffineGroup group;
  group.offset = f16_from_float_saturated(low);
  const float range = std::max(0.0F, high - float_from_f16(group.offset));
  group.scale = f16_from_float_saturated(range / static_cast<float>((1 << bits) - 1));
  return group;
}

void reciprocal_row(const float* scale, int n, float* reciprocal) {
  for (int i = 0; i < n; ++i) reciprocal[i] = scale[i] != 0 ? 1 / scale[i] : 0;
}

KVANT_SIMD_CLONES void encode_affine_row(const float* values, int n, int bits, const float* reciprocal,
                                         const float* offset, std::byte* packed) {
  std::array<std::uint16_t, kMaxHeadDim> codes;
  const float last = static_cast<float>((1 << bits) - 1);
  for (int i = 0; i < n; ++i) {
    const float position = (values[i] - offset[i]) * reciprocal[i];
    const float above = position > 0 ? position : 0;
    const float inside = above < last ? above : last;
    const float rounded = inside + kHalf;  // the conversion to int drops the fraction
    codes[i] = static_cast<std::uint16_t>(static_cast<int>(rounded));
  }
  pack_codes(codes.data(), n, bits, packed);
}

KVANT_SIMD_CLONES void decode_affine_row(const std::byte* packed, int n, int bits, const float* scale,
                                         const float* offset, float* values) {
  with_code_bits(
      bits, [&](auto width) __attribute__((always_inline)) {
        constexpr int kBits = decltype(width)::value;
        for (int i = 0; i < n; i += kCodeBlock) {
          std::array<std::int32_t, kCodeBlock> codes;
          unpack_block<kBits>(packed + i / kCodeBlock * kBits, codes.data());
          for (int j = 0; j < kCodeBlock; ++j) {
            values[i + j] = static_cast<float>(codes[j]) * scale[i + j] + offset[i + j];
          }
        }
      });
}

}  // namespace kvant
