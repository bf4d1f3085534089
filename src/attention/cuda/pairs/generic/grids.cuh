// Scales, zeros and the factors of tokens, of any format (page_format.h).
#pragma once

#include "attention/cuda/pairs/generic/numbers.cuh"
#include "attention/cuda/pairs/progressive.cuh"

namespace kvant::cuda {

// Scale and zero of two values: number * scale + zero.
struct ScaleZero {
  std::uint32_t scale, zero;
};

__device__ __forceinline__ std::uint32_t twice(std::uint32_t pair, int i) {
  return __byte_perm(pair, 0, i == 0 ? 0x1010 : 0x3232);
}

// The grids of tokens, of one group of channels.
struct TokenGrids {
  const unsigned char* parameters;
  int groups, group, zeros_at;
  bool symmetric;
  float middle, stretch;  // symmetric: zero = middle * scale, then scale *= stretch

  __device__ __forceinline__ TokenGrids(const AnyPage& page, const unsigned char* bytes, int d, int channel)
      : parameters(bytes + page.code_bytes),
        groups(page.format.groups(d)),
        group(groups == 1 ? 0 : channel / page.format.group),
        zeros_at(2 * kTokens * groups),
        symmetric(page.format.symmetric),
        middle(-static_cast<float>(1 << page.format.layout.bits) / 2),
        stretch(page.format.layout.bits == 1 ? 2 : 1) {}

  // Of tokens first and first + 1.
  __device__ __forceinline__ ScaleZero pair(int first) const {
    ScaleZero grid{};
    grid.scale = halves(parameters, first);
    if (symmetric) {
      grid.zero = multiply_half2(grid.scale, pack_half2(middle, middle));
      grid.scale = multiply_half2(grid.scale, pack_half2(stretch, stretch));
    } else {
      grid.zero = halves(parameters + zeros_at, first);
    }
    return grid;
  }

 private:
  __device__ __forceinline__ std::uint32_t halves(const unsigned char* numbers, int token) const {
    if (groups == 1) return *reinterpret_cast<const std::uint32_t*>(numbers + 2 * token);
    const auto* number = reinterpret_cast<const std::uint16_t*>(numbers) + token * groups + group;
    return number[0] | static_cast<std::uint32_t>(number[groups]) << 16;
  }
};

// The grids of channels, of the block of tokens that `token` is in.
struct ChannelGrids {
  const unsigned char *scales, *zeros;
  bool integers, as_printed;

  __device__ __forceinline__ ChannelGrids(const AnyPage& page, const unsigned char* bytes, int d, int token)
      : integers(page.format.grid == GridAxis::of_integers), as_printed(page.format.as_printed) {
    const unsigned char* parameters = bytes + page.code_bytes;
    if (integers) {
      scales = parameters + token / 64 * d;
      zeros = scales + 2 * d;
    } else {
      scales = parameters + token / page.format.group * 2 * d;
      zeros = scales + kTokens / page.format.group * 2 * d;
    }
  }

  // Of channels first and first + 1; first is even.
  __device__ __forceinline__ ScaleZero pair(int first) const {
    if (!integers)
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
template <int D>
__device__ __forceinline__ void scale_keys(const AnyPage& page, const unsigned char* bytes, int k, int lane,
                                           Fragments& a) {
  const int channel = lane % 4 * (D / 4) + 4 * k;
  if (page.format.grid == GridAxis::of_tokens) {
    const TokenGrids grids(page, bytes, D, channel);
#pragma unroll
    for (int m = 0; m < kTokenTiles; ++m) {
      const ScaleZero grid = grids.pair(m / 2 * 32 + lane / 4 * 4 + m % 2 * 2);
#pragma unroll
      for (int reg = 0; reg < 4; ++reg)
        a[m][reg] = fma_half2(a[m][reg], twice(grid.scale, reg % 2), twice(grid.zero, reg % 2));
    }
    return;
  }
#pragma unroll
  for (int part = 0; part < kTokenTiles / 2; ++part) {
    const ChannelGrids grids(page, bytes, D, part * 32);
    const ScaleZero grid[2] = {grids.pair(channel), grids.pair(channel + 2)};
#pragma unroll
    for (int m = 2 * part; m < 2 * part + 2; ++m) {
#pragma unroll
      for (int reg = 0; reg < 4; ++reg)
        a[m][reg] = fma_half2(a[m][reg], grid[reg / 2].scale, grid[reg / 2].zero);
    }
  }
}

// A run of values: rows are channels.
template <int D>
__device__ __forceinline__ void scale_values(const AnyPage& page, const unsigned char* bytes, int run,
                                             int lane, Fragments& a) {
  constexpr int kMTiles = D / 16;
  constexpr int kMost = kMTiles < kRun ? kMTiles : kRun;  // m tiles of a token tile in a run
#pragma unroll
  for (int first = 0; first < kRun; first += kMost) {
    const int k = (run * kRun + first) / kMTiles;
    const int token = k / 2 * 32 + lane % 4 * 8 + k % 2 * 2;
    const int channel = lane / 4 * (D / 8) + 2 * ((run * kRun + first) % kMTiles);
    if (page.format.grid == GridAxis::of_tokens) {
      const TokenGrids grids(page, bytes, D, channel);
      const ScaleZero one = grids.pair(token);
      const ScaleZero four_on = grids.pair(token + 4);
      const ScaleZero grid[2] = {
          {__byte_perm(one.scale, four_on.scale, 0x5410), __byte_perm(one.zero, four_on.zero, 0x5410)},
          {__byte_perm(one.scale, four_on.scale, 0x7632), __byte_perm(one.zero, four_on.zero, 0x7632)}};
#pragma unroll
      for (int f = first; f < first + kMost; ++f) {
#pragma unroll
        for (int reg = 0; reg < 4; ++reg)
          a[f][reg] = fma_half2(a[f][reg], grid[reg / 2].scale, grid[reg / 2].zero);
      }
      continue;
    }
    const ChannelGrids grids(page, bytes, D, k * 16);
#pragma unroll
    for (int f = first; f < first + kMost; ++f) {
      const ScaleZero grid = grids.pair(channel + 2 * (f - first));
#pragma unroll
      for (int reg = 0; reg < 4; ++reg)
        a[f][reg] = fma_half2(a[f][reg], twice(grid.scale, reg % 2), twice(grid.zero, reg % 2));
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

// What the values of the lane's four tokens of a part of 32, 4g .. 4g + 3, are multiplied by, in units that
// make them as large as the values are: half-precision weights times them keep their precision.
template <int D>
__device__ __forceinline__ float4 token_factors(const AnyPage& page, const unsigned char* bytes, int part,
                                                int lane) {
  const unsigned char* parameters = bytes + page.code_bytes;
  const int token = part * 32 + lane / 4 * 4;
  const float lift = 1 / page.unit;
  switch (page.format.factor) {
    case TokenFactor::half: {
      const uint2 four = *reinterpret_cast<const uint2*>(parameters + 2 * token);
      const float2 low = unpack_half2(four.x);
      const float2 high = unpack_half2(four.y);
      return {low.x, low.y, high.x, high.y};
    }
    case TokenFactor::single: {
      const float4 x = *reinterpret_cast<const float4*>(parameters + 4 * token);
      return {x.x * lift, x.y * lift, x.z * lift, x.w * lift};
    }
    case TokenFactor::block: {
      const float x = reinterpret_cast<const float*>(parameters + 4 * D)[part / 2] * lift;
      return {x, x, x, x};
    }
    case TokenFactor::octave: {
      const std::uint32_t codes = *reinterpret_cast<const std::uint32_t*>(parameters + token);
      const float loudest = *reinterpret_cast<const float*>(parameters + kTokens + 2 * D);
      const auto gain = [&](int i) {
        const std::uint32_t code = (codes >> (8 * i)) & 0xff;
        return code == 255 ? 0 : loudest * exp2_fast(static_cast<float>(code) * (-1.0F / 32));
      };
      return {gain(0), gain(1), gain(2), gain(3)};
    }
    case TokenFactor::none:
      break;
  }
  return {1, 1, 1, 1};
}

}  // namespace kvant::cuda
