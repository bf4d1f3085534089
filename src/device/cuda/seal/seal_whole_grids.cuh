// Encodes uniform grids of 2 and 4 bits if each channel, or each token, of a page has a single grid. Examples
// are `ch4g128`, and `tok4g128` with heads of up to 128 channels. The arithmetic is the same as in
// seal_grids.cuh. The properties of these common formats are compile-time constants here, which makes the
// code faster.
#pragma once

#include "device/cuda/seal/seal_page.cuh"
#include "device/cuda/seal/uniform_grid.cuh"

namespace kvant::cuda {

// Returns the values of two neighbouring channels of a token.
template <int D>
__device__ __forceinline__ __nv_bfloat162 pair_of(const SealPage<D>& page, int token, int channel) {
  return *reinterpret_cast<const __nv_bfloat162*>(page.shared.values + token * SealShared<D>::kRow + channel);
}

// code_number() returns an F32 number equal to 2^23 plus the code of a UniformGrid, so the code is in its low
// bits. kOfCodes holds the bits of 2^23.
inline constexpr std::uint32_t kOfCodes = 0x4B000000;
__device__ __forceinline__ std::uint32_t code_number(float2 grid, float last, float x) {
  const float position = __fmul_rn(__fsub_rn(x, grid.x), grid.y);
  return __float_as_uint(__fadd_rz(__fadd_rn(fminf(fmaxf(position, 0), last), 0.5F), 0x1p23F));
}

// Returns the bit of a word at which a code starts. The code belongs to contraction index j and row `row` in
// fragment `nth` of the word.
template <int Bits>
KVANT_HOST_DEVICE constexpr int bit_in_word(int nth, int j, int row) {
  return j % 2 * 16 + j / 2 * 8 + (2 * nth + row) * Bits;
}

// Returns what code_number() adds to a word besides the codes. For each code, this is kOfCodes at the place
// of the code.
template <int Bits>
KVANT_HOST_DEVICE constexpr std::uint32_t excess_of_word() {
  std::uint32_t excess = 0;
  for (int nth = 0; nth < 4 / Bits; ++nth)
    for (int j = 0; j < 4; ++j)
      for (int row = 0; row < 2; ++row) excess += kOfCodes << bit_in_word<Bits>(nth, j, row);
  return excess;
}

// Stores the words of codes in the layout of CodeWord. grid_of(token, channel) returns the grid of a value.
template <int D, int Bits, PageSide Side, class Grids>
__device__ __forceinline__ void store_grid_codes(SealPage<D>& page, const Grids& grid_of) {
  constexpr float kLast = (1 << Bits) - 1;
  constexpr int kTiles = Side == PageSide::key ? kTokenTiles : D / 16;
  constexpr int kWords = kPageTokens * D * Bits / 32;
  static_assert(kWords % kSealThreads == 0 && kSealThreads % (4 * kLanes) == 0);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread / 4 % kLanes;
#pragma unroll 4
  for (int i = thread; i < kWords; i += kSealThreads) {
    const int of_stream = i / (4 * kLanes) * 4 + thread % 4;
    const int fragment = of_stream / (2 * Bits) * kRun + of_stream % (2 * Bits) * (4 / Bits);
    std::uint32_t word = 0U - excess_of_word<Bits>();
#pragma unroll
    for (int nth = 0; nth < 4 / Bits; ++nth) {
      const int k_tile = (fragment + nth) / kTiles, m_tile = (fragment + nth) % kTiles;
      const auto add = [&](int token, int channel, int j, int row, float x) {
        word += code_number(grid_of(token, channel), kLast, x) << bit_in_word<Bits>(nth, j, row);
      };
      if constexpr (Side == PageSide::key) {
        const int token = m_tile / 2 * 32 + lane / 4 * 4 + m_tile % 2 * 2;
        const int channel = lane % 4 * (D / 4) + 4 * k_tile;
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
#pragma unroll
          for (int row = 0; row < 2; ++row) {
            const float2 x = __bfloat1622float2(pair_of(page, token + row, channel + j));
            add(token + row, channel + j, j, row, x.x);
            add(token + row, channel + j + 1, j + 1, row, x.y);
          }
        }
      } else {
        const int first = k_tile / 2 * 32 + lane % 4 * 8 + k_tile % 2 * 2;
        const int channel = lane / 4 * (D / 8) + 2 * m_tile;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int token = first + j % 2 * 4 + j / 2;
          const float2 x = __bfloat1622float2(pair_of(page, token, channel));
          add(token, channel, j, 0, x.x);
          add(token, channel + 1, j, 1, x.y);
        }
      }
    }
    page.words[i] = word;
  }
}

// Holds the least and the largest numbers of two neighbouring channels.
struct PairRange {
  __nv_bfloat162 low, high;
  __device__ __forceinline__ void include(const PairRange& other) {
    low = __hmin2(low, other.low);
    high = __hmax2(high, other.high);
  }
};

// Merges ranges of N pairs of channels, or of N tokens. Each thread passes part thread / N of range thread %
// N. The first N threads return the merged ranges. The parts are stored after the grids that are made from
// them. All threads of the CTA must call this function.
template <int N, int D>
__device__ __forceinline__ PairRange with_other_parts(SealPage<D>& page, PairRange own) {
  static_assert(SealShared<D>::kMaxGrids >= kMaxHeadDim + kSealThreads);
  static_assert(sizeof(PairRange) == sizeof(float2) && kMaxHeadDim >= kPageTokens);
  PairRange* const parts = reinterpret_cast<PairRange*>(page.shared.grids + kMaxHeadDim);
  const int thread = static_cast<int>(threadIdx.x);
  parts[thread] = own;
  __syncthreads();
  if (thread < N) {
#pragma unroll
    for (int part = 1; part < kSealThreads / N; ++part) own.include(parts[part * N + thread]);
  }
  return own;
}

// Stores grid i of n and its parameters, for numbers from `low` to `high`.
template <int D>
__device__ __forceinline__ void put_grid(SealPage<D>& page, int bits, int i, int n, float low, float high) {
  const ScaleAndZero fitted(low, high, bits);
  page.store_half(i, fitted.scale);
  page.store_half(n + i, fitted.zero);
  page.shared.grids[i] = fitted.grid(bits).stored();
}

// Encodes a page with one grid for each channel. No token may be left out.
template <int D, int Bits, PageSide Side>
__device__ __forceinline__ void encode_whole_channels(SealPage<D>& page) {
  constexpr int kPairs = D / 2;
  constexpr int kParts = kSealThreads / kPairs;
  const int thread = static_cast<int>(threadIdx.x);
  PairRange own{__float2bfloat162_rn(INFINITY), __float2bfloat162_rn(-INFINITY)};
#pragma unroll 8
  for (int token = thread / kPairs; token < kPageTokens; token += kParts) {
    const __nv_bfloat162 x = pair_of(page, token, thread % kPairs * 2);
    own.include({x, x});
  }
  own = with_other_parts<kPairs>(page, own);
  if (thread < kPairs) {
    const float2 low = __bfloat1622float2(own.low), high = __bfloat1622float2(own.high);
    const auto put = [&](int channel, float least, float largest) {
      if (least > largest) least = largest = 0;  // there are no numbers
      put_grid(page, Bits, channel, D, least, largest);
    };
    put(2 * thread, low.x, high.x);
    put(2 * thread + 1, low.y, high.y);
  }
  __syncthreads();
  store_grid_codes<D, Bits, Side>(page, [&](int, int channel) { return page.shared.grids[channel]; });
}

template <int D, int Bits, PageSide Side>
__device__ __forceinline__ void encode_whole_tokens(SealPage<D>& page) {
  constexpr int kParts = kSealThreads / kPageTokens;
  constexpr int kChannels = D / kParts;
  const int thread = static_cast<int>(threadIdx.x);
  const int token = thread % kPageTokens, first = thread / kPageTokens * kChannels;
  const __nv_bfloat162 begin = pair_of(page, token, first);
  PairRange own{begin, begin};
#pragma unroll 8
  for (int channel = 2; channel < kChannels; channel += 2) {
    const __nv_bfloat162 x = pair_of(page, token, first + channel);
    own.include({x, x});
  }
  own = with_other_parts<kPageTokens>(page, own);
  if (thread < kPageTokens) {
    const float2 low = __bfloat1622float2(own.low), high = __bfloat1622float2(own.high);
    put_grid(page, Bits, token, kPageTokens, fminf(low.x, low.y), fmaxf(high.x, high.y));
  }
  __syncthreads();
  store_grid_codes<D, Bits, Side>(page, [&](int token, int) { return page.shared.grids[token]; });
}

// Encodes the page if its format has one of the grids of this file. Returns false if the format has other
// grids, or if grids are by channel and some tokens are left out.
template <int D>
__device__ __forceinline__ bool encode_whole_grids(SealPage<D>& page) {
  const PageFormat& stored = page.format.stored;
  const bool by_channel = page.format.encoding == Encoding::channel_grid;
  if (by_channel ? stored.group != kPageTokens : stored.groups(D) != 1 || stored.symmetric) return false;
  if (by_channel) {
    std::uint32_t left_out = 0;
    for (const std::uint32_t word : page.shared.left_out) left_out |= word;
    if (left_out != 0) return false;
  }
  const auto of_side = [&]<int Bits, PageSide Side>() {
    by_channel ? encode_whole_channels<D, Bits, Side>(page) : encode_whole_tokens<D, Bits, Side>(page);
  };
  const auto of_bits = [&]<int Bits>() {
    page.side == PageSide::key ? of_side.template operator()<Bits, PageSide::key>()
                               : of_side.template operator()<Bits, PageSide::value>();
  };
  if (stored.layout.bits == 4) {
    of_bits.template operator()<4>();
  } else if (stored.layout.bits == 2) {
    of_bits.template operator()<2>();
  } else {
    return false;
  }
  return true;
}

}  // namespace kvant::cuda
