// Applies the scales and zeros of grids, and reads the factors of tokens, in any format (page_format.h). The
// generic kernel decodes with these functions.
#pragma once

#include "device/cuda/page/trellis_parameters.cuh"
#include "device/cuda/pairs/generic/numbers.cuh"
#include "device/cuda/pairs/look_up.cuh"
#include "device/cuda/pairs/progressive.cuh"
#include "format/trellis_gain.h"

namespace kvant::cuda {

// Holds the scales and the zeros of two values as half-precision numbers. A value is number * scale + zero.
struct ScaleZero {
  std::uint32_t scale, zero;
};

__device__ __forceinline__ std::uint32_t twice(std::uint32_t pair, int i) {
  return __byte_perm(pair, 0, i == 0 ? 0x1010 : 0x3232);
}

// Returns 2^exponent, for |exponent| <= 126.
__device__ __forceinline__ float power_of_two(int exponent) {
  return __int_as_float((127 + exponent) << 23);
}

// Holds the grids of tokens for the group of channels to which the lane's channels belong.
struct TokenGrids {
  const unsigned char *scales, *zeros;
  int groups;
  std::uint32_t stretch, zero_factor;  // zeros of symmetric grids are multiples of the scales

  __device__ __forceinline__ TokenGrids(const AnyPage& page, const unsigned char* bytes, int d, int channel)
      : groups(page.format.groups(d)) {
    scales = bytes + page.code_bytes + 2 * (channel / page.format.group);
    zeros = page.format.symmetric ? scales : scales + 2 * kPageTokens * groups;
    stretch = pack_half2(page.stretch, page.stretch);
    zero_factor = pack_half2(page.zero_factor, page.zero_factor);
  }

  // Returns the grids of tokens first and first + 1.
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

// Holds the grids of channels for a part of 32 tokens.
template <GridAxis Grid>
struct ChannelGrids {
  const unsigned char *scales, *zeros;
  bool as_printed;

  __device__ __forceinline__ ChannelGrids(const AnyPage& page, const unsigned char* bytes, int d, int part)
      : as_printed(page.format.as_printed) {
    const unsigned char* parameters = bytes + page.code_bytes;
    const int block = part >> page.block_shift;
    if constexpr (Grid == GridAxis::of_integers) {
      scales = parameters + block * d;
      zeros = scales + 2 * d;
    } else {
      scales = parameters + block * 2 * d;
      zeros = scales + (4 >> page.block_shift) * 2 * d;
    }
  }

  // Returns the grids of channels first to first + 3. `first` must be a multiple of 4.
  __device__ __forceinline__ void four(int first, ScaleZero (&grid)[2]) const {
    if constexpr (Grid == GridAxis::of_channels) {
      const uint2 scale = *reinterpret_cast<const uint2*>(scales + 2 * first);
      const uint2 zero = *reinterpret_cast<const uint2*>(zeros + 2 * first);
      grid[0] = {scale.x, zero.x};
      grid[1] = {scale.y, zero.y};
    } else {
      const std::uint32_t steps = *reinterpret_cast<const std::uint32_t*>(scales + first);
      const std::uint32_t signed_zeros = *reinterpret_cast<const std::uint32_t*>(zeros + first);
      grid[0] = grid_of_integers(steps, signed_zeros, Bytes::first);
      grid[1] = grid_of_integers(steps, signed_zeros, Bytes::last);
    }
  }

 private:
  __device__ __forceinline__ ScaleZero grid_of_integers(std::uint32_t steps, std::uint32_t signed_zeros,
                                                        Bytes which) const {
    ScaleZero grid{half2_from_bytes(steps, which, 0), half2_from_bytes(signed_zeros ^ kSignBits, which, 128)};
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

// Applies grids to the runs of a page. For keys, a run is a contraction tile of channels and its rows are
// tokens. For values, a run is a number of tokens and its rows are channels.
template <int D, PageSide Side, GridAxis Grid>
struct GridScaler;

struct NoScaler {
  __device__ __forceinline__ NoScaler(const AnyPage&, const unsigned char*, int) {}
  __device__ __forceinline__ void apply(int, Fragments&) const {}
};

// GridsReadAnew is the base of scalers for pages with too many grids for the registers, so each run reads its
// own grids.
struct GridsReadAnew {
  const AnyPage& page;
  const unsigned char* bytes;
  int lane;

  __device__ __forceinline__ GridsReadAnew(const AnyPage& of_launch, const unsigned char* of_page,
                                           int of_warp)
      : page(of_launch), bytes(of_page), lane(of_warp) {}
};

template <int D>
struct GridScaler<D, PageSide::key, GridAxis::none> : NoScaler {
  using NoScaler::NoScaler;
};
template <int D>
struct GridScaler<D, PageSide::value, GridAxis::none> : NoScaler {
  using NoScaler::NoScaler;
};

template <int D>
requires(block_dim(D) <= 128) struct GridScaler<D, PageSide::key, GridAxis::of_tokens> {
  ScaleZero grids[kTokenTiles];  // grids of rows g and g + 8, for all of the lane's channels

  __device__ __forceinline__ GridScaler(const AnyPage& page, const unsigned char* bytes, int lane) {
    const TokenGrids of_page(page, bytes, D, first_channel<D>(PageSide::key, lane % 4));
#pragma unroll
    for (int m = 0; m < kTokenTiles; ++m) grids[m] = of_page.pair(m / 2 * 32 + lane / 4 * 4 + m % 2 * 2);
  }
  __device__ __forceinline__ void apply(int, Fragments& a) const {
#pragma unroll
    for (int m = 0; m < kTokenTiles; ++m) {
#pragma unroll
      for (int reg = 0; reg < 4; ++reg)
        a[m][reg] = fma_half2(a[m][reg], twice(grids[m].scale, reg % 2), twice(grids[m].zero, reg % 2));
    }
  }
};

// With wide heads, the channels of a lane may belong to several groups. Each run therefore reads its own
// grids.
template <int D>
requires(block_dim(D) > 128) struct GridScaler<D, PageSide::key, GridAxis::of_tokens> : GridsReadAnew {
  using GridsReadAnew::GridsReadAnew;
  __device__ __forceinline__ void apply(int run, Fragments& a) const {
    const TokenGrids of_run(page, bytes, D, lane % 4 * (D / 4) + 4 * run);
#pragma unroll
    for (int m = 0; m < kTokenTiles; ++m) {
      const ScaleZero grid = of_run.pair(m / 2 * 32 + lane / 4 * 4 + m % 2 * 2);
#pragma unroll
      for (int reg = 0; reg < 4; ++reg)
        a[m][reg] = fma_half2(a[m][reg], twice(grid.scale, reg % 2), twice(grid.zero, reg % 2));
    }
  }
};

template <int D>
struct GridScaler<D, PageSide::value, GridAxis::of_tokens> {
  TokenGrids of_page;
  int first_token;  // first token of the lane

  __device__ __forceinline__ GridScaler(const AnyPage& page, const unsigned char* bytes, int lane)
      : of_page(page, bytes, D, first_channel<D>(PageSide::value, lane / 4)), first_token(lane % 4 * 8) {}
  __device__ __forceinline__ void apply(int run, Fragments& a) const {
    constexpr int kMTiles = block_dim(D) / 16;
    constexpr int kTogether = kRunMTiles<block_dim(D)>;
#pragma unroll
    for (int first = 0; first < kRun; first += kTogether) {
      const int k = (run * kRun + first) / kMTiles;
      const int token = k / 2 * 32 + first_token + k % 2 * 2;
      const ScaleZero one = of_page.pair(token);
      const ScaleZero four_on = of_page.pair(token + 4);
      const ScaleZero grid[2] = {
          {low_halves(one.scale, four_on.scale), low_halves(one.zero, four_on.zero)},
          {high_halves(one.scale, four_on.scale), high_halves(one.zero, four_on.zero)}};
#pragma unroll
      for (int f = first; f < first + kTogether; ++f) {
#pragma unroll
        for (int reg = 0; reg < 4; ++reg)
          a[f][reg] = fma_half2(a[f][reg], grid[reg / 2].scale, grid[reg / 2].zero);
      }
    }
  }
};

// This specialization serves grids of channels or of integers.
template <int D, GridAxis Grid>
struct GridScaler<D, PageSide::key, Grid> : GridsReadAnew {
  using GridsReadAnew::GridsReadAnew;
  __device__ __forceinline__ void apply(int run, Fragments& a) const {
#pragma unroll
    for (int part = 0; part < kTokenTiles / 2; ++part) {
      ScaleZero grid[2];
      ChannelGrids<Grid>(page, bytes, D, part)
          .four(first_channel<D>(PageSide::key, lane % 4) + 4 * run, grid);
#pragma unroll
      for (int m = 2 * part; m < 2 * part + 2; ++m) {
#pragma unroll
        for (int reg = 0; reg < 4; ++reg)
          a[m][reg] = fma_half2(a[m][reg], grid[reg / 2].scale, grid[reg / 2].zero);
      }
    }
  }
};

template <int D, GridAxis Grid>
struct GridScaler<D, PageSide::value, Grid> : GridsReadAnew {
  using GridsReadAnew::GridsReadAnew;
  __device__ __forceinline__ void apply(int run, Fragments& a) const {
    constexpr int kMTiles = block_dim(D) / 16;
    constexpr int kTogether = kRunMTiles<block_dim(D)>;
#pragma unroll
    for (int first = 0; first < kRun; first += kTogether) {
      const ChannelGrids<Grid> grids(page, bytes, D, (run * kRun + first) / kMTiles / 2);
      const int first_m = (run * kRun + first) % kMTiles;
#pragma unroll
      for (int m = 0; m < kTogether; m += 2) {
        ScaleZero grid[2];  // grids of the channels of two m tiles
        grids.four(first_channel<D>(PageSide::value, lane / 4) + 2 * (first_m + m), grid);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          std::uint32_t& x = a[first + m + i / 4][i % 4];
          x = fma_half2(x, twice(grid[i / 4].scale, i % 2), twice(grid[i / 4].zero, i % 2));
        }
      }
    }
  }
};

__device__ __forceinline__ void clamp_integers(Fragments& a) {
#pragma unroll
  for (int f = 0; f < kRun; ++f) {
#pragma unroll
    for (int reg = 0; reg < 4; ++reg) a[f][reg] = clamped(a[f][reg]);
  }
}

// Holds the factors and the zeros of the lane's four tokens 4g .. 4g + 3 in a part of 32 tokens. In their
// unit, the factors are as large as the values. Half-precision weights times such factors keep their
// precision.
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
      unpack_four(parameters + (page.format.symmetric ? 0 : 2 * kPageTokens) + 2 * token, scales.zero);
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
      const float loudest = loudest_gain<D>(parameters);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const auto code = static_cast<int>((codes >> (8 * i)) & 0xff);
        scales.factor[i] = gain_of_code(code, loudest, [](float x) { return exp2_fast(x); });
      }
      break;
    }
    case TokenFactor::none:
      break;
  }
  return scales;
}

}  // namespace kvant::cuda
