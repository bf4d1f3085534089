// Scales, zeros and the factors of tokens, of any format (page_format.h).
#pragma once

#include "attention/cuda/pairs/generic/numbers.cuh"
#include "attention/cuda/pairs/look_up.cuh"
#include "attention/cuda/pairs/progressive.cuh"

namespace kvant::cuda {

// Scale and zero of two values: number * scale + zero.
struct ScaleZero {
  std::uint32_t scale, zero;
};

__device__ __forceinline__ std::uint32_t twice(std::uint32_t pair, int i) {
  return __byte_perm(pair, 0, i == 0 ? 0x1010 : 0x3232);
}

// The grids of tokens, of one of several groups of channels.
struct TokenGrids {
  const unsigned char *scales, *zeros;
  int groups;
  std::uint32_t stretch, zero_factor;  // symmetric: zeros follow from scales

  __device__ __forceinline__ TokenGrids(const AnyPage& page, const unsigned char* bytes, int d, int channel)
      : groups(page.format.groups(d)) {
    scales = bytes + page.code_bytes + 2 * (channel / page.format.group);
    zeros = page.format.symmetric ? scales : scales + 2 * kTokens * groups;
    stretch = pack_half2(page.stretch, page.stretch);
    zero_factor = pack_half2(page.zero_factor, page.zero_factor);
  }

  // Of tokens first and first + 1.
  __device__ __forceinline__ ScaleZero pair(int first) const {
    return {multiply_half2(halves(scales, first), stretch),
            multiply_half2(halves(zeros, first), zero_factor)};
  }

 private:
  __device__ __forceinline__ std::uint32_t halves(const unsigned char* numbers, int token) const {
    const auto* number = reinterpret_cast<const std::uint16_t*>(numbers) + token * groups;
    return number[0] | static_cast<std::uint32_t>(number[groups]) << 16;
  }
};

// The grids of channels, of the block of tokens that `token` is in.
template <GridAxis Grid>
struct ChannelGrids {
  const unsigned char *scales, *zeros;
  bool as_printed;

  __device__ __forceinline__ ChannelGrids(const AnyPage& page, const unsigned char* bytes, int d, int token)
      : as_printed(page.format.as_printed) {
    const unsigned char* parameters = bytes + page.code_bytes;
    if constexpr (Grid == GridAxis::of_integers) {
      scales = parameters + token / 64 * d;
      zeros = scales + 2 * d;
    } else {
      scales = parameters + token / page.format.group * 2 * d;
      zeros = scales + kTokens / page.format.group * 2 * d;
    }
  }

  // Of channels first and first + 1; first is even.
  __device__ __forceinline__ ScaleZero pair(int first) const {
    if constexpr (Grid == GridAxis::of_channels)
      return {*reinterpret_cast<const std::uint32_t*>(scales + 2 * first),
              *reinterpret_cast<const std::uint32_t*>(zeros + 2 * first)};
    const std::uint32_t step = *reinterpret_cast<const std::uint16_t*>(scales + first);
    const std::uint32_t zero = *reinterpret_cast<const std::uint16_t*>(zeros + first) ^ kSignBits;
    ScaleZero grid{half2_from_bytes(step, Bytes::first, 0), half2_from_bytes(zero, Bytes::first, 128)};
    if (as_printed) grid.zero = multiply_half2(grid.zero, grid.scale);
    return grid;
  }
};

__device__ __forceinline__ std::uint32_t clamped(std::uint32_t x) {
  constexpr std::uint32_t k127 = 0x57f057f0;
  constexpr std::uint32_t kSigns = 0x80008000;
  const auto half2 = [](const std::uint32_t& bits) { return *reinterpret_cast<const __half2*>(&bits); };
  const __half2 y = __hmin2(__hmax2(half2(x), half2(k127 | kSigns)), half2(k127));
  return *reinterpret_cast<const std::uint32_t*>(&y);
}

// Keys of contraction tile k: rows are tokens.
template <int D, GridAxis Grid>
__device__ __forceinline__ void scale_keys(const AnyPage& page, const unsigned char* bytes, int k, int lane,
                                           Fragments& a) {
  const int channel = lane % 4 * (D / 4) + 4 * k;
  if constexpr (Grid == GridAxis::of_tokens) {
    const TokenGrids grids(page, bytes, D, channel);
#pragma unroll
    for (int m = 0; m < kTokenTiles; ++m) {
      const ScaleZero grid = grids.pair(m / 2 * 32 + lane / 4 * 4 + m % 2 * 2);
#pragma unroll
      for (int reg = 0; reg < 4; ++reg)
        a[m][reg] = fma_half2(a[m][reg], twice(grid.scale, reg % 2), twice(grid.zero, reg % 2));
    }
  } else {
#pragma unroll
    for (int part = 0; part < kTokenTiles / 2; ++part) {
      const ChannelGrids<Grid> grids(page, bytes, D, part * 32);
      const ScaleZero grid[2] = {grids.pair(channel), grids.pair(channel + 2)};
#pragma unroll
      for (int m = 2 * part; m < 2 * part + 2; ++m) {
#pragma unroll
        for (int reg = 0; reg < 4; ++reg)
          a[m][reg] = fma_half2(a[m][reg], grid[reg / 2].scale, grid[reg / 2].zero);
      }
    }
  }
}

// A run of values: rows are channels.
template <int D, GridAxis Grid>
__device__ __forceinline__ void scale_values(const AnyPage& page, const unsigned char* bytes, int run,
                                             int lane, Fragments& a) {
  constexpr int kMTiles = D / 16;
  const int channel = lane / 4 * (D / 8);
#pragma unroll
  for (int first = 0; first < kRun; first += kMTiles) {
    const int k = (run * kRun + first) / kMTiles;
    if constexpr (Grid == GridAxis::of_tokens) {
      const int token = k / 2 * 32 + lane % 4 * 8 + k % 2 * 2;
      const TokenGrids grids(page, bytes, D, channel);
      const ScaleZero one = grids.pair(token);
      const ScaleZero four_on = grids.pair(token + 4);
      const ScaleZero grid[2] = {
          {low_halves(one.scale, four_on.scale), low_halves(one.zero, four_on.zero)},
          {high_halves(one.scale, four_on.scale), high_halves(one.zero, four_on.zero)}};
#pragma unroll
      for (int f = first; f < first + kMTiles; ++f) {
#pragma unroll
        for (int reg = 0; reg < 4; ++reg)
          a[f][reg] = fma_half2(a[f][reg], grid[reg / 2].scale, grid[reg / 2].zero);
      }
    } else {
      const ChannelGrids<Grid> grids(page, bytes, D, k * 16);
#pragma unroll
      for (int f = first; f < first + kMTiles; ++f) {
        const ScaleZero grid = grids.pair(channel + 2 * (f - first));
#pragma unroll
        for (int reg = 0; reg < 4; ++reg)
          a[f][reg] = fma_half2(a[f][reg], twice(grid.scale, reg % 2), twice(grid.zero, reg % 2));
      }
    }
  }
}

__device__ __forceinline__ void clamp_integers(Fragments& a) {
#pragma unroll
  for (int f = 0; f < kRun; ++f) {
#pragma unroll
    for (int reg = 0; reg < 4; ++reg) a[f][reg] = clamped(a[f][reg]);
  }
}

// What the values of the lane's four tokens of a part of 32, 4g .. 4g + 3, are multiplied by, then shifted
// by. Factors are in units that make them as large as the values are: half-precision weights times them keep
// their precision.
struct TokenScales {
  float factor[4], zero[4];
};

__device__ __forceinline__ void unpack_four(const unsigned char* halves, float (&x)[4]) {
  const uint2 four = *reinterpret_cast<const uint2*>(halves);
  const float2 low = unpack_half2(four.x);
  const float2 high = unpack_half2(four.y);
  x[0] = low.x;
  x[1] = low.y;
  x[2] = high.x;
  x[3] = high.y;
}

template <int D>
__device__ __forceinline__ TokenScales token_scales(const AnyPage& page, const unsigned char* bytes, int part,
                                                    int lane) {
  const unsigned char* parameters = bytes + page.code_bytes;
  const int token = part * 32 + lane / 4 * 4;
  const float lift = 1 / page.unit;
  TokenScales scales{{1, 1, 1, 1}, {0, 0, 0, 0}};
  switch (page.format.factor) {
    case TokenFactor::grid:
      unpack_four(parameters + 2 * token, scales.factor);
      unpack_four(parameters + (page.format.symmetric ? 0 : 2 * kTokens) + 2 * token, scales.zero);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scales.factor[i] *= page.stretch;
        scales.zero[i] *= page.zero_factor;
      }
      break;
    case TokenFactor::half:
      unpack_four(parameters + 2 * token, scales.factor);
      break;
    case TokenFactor::single: {
      const float4 x = *reinterpret_cast<const float4*>(parameters + 4 * token);
      scales = {{x.x * lift, x.y * lift, x.z * lift, x.w * lift}, {}};
      break;
    }
    case TokenFactor::block: {
      const float x = reinterpret_cast<const float*>(parameters + 4 * D)[part / 2] * lift;
      scales = {{x, x, x, x}, {}};
      break;
    }
    case TokenFactor::octave: {
      const std::uint32_t codes = *reinterpret_cast<const std::uint32_t*>(parameters + token);
      const float loudest = *reinterpret_cast<const float*>(parameters + kTokens + 2 * D);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t code = (codes >> (8 * i)) & 0xff;
        scales.factor[i] = code == 255 ? 0 : loudest * exp2_fast(static_cast<float>(code) * (-1.0F / 32));
      }
      break;
    }
    case TokenFactor::none:
      break;
  }
  return scales;
}

}  // namespace kvant::cuda
