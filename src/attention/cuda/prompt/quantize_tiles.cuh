// The first pass of prompt attention: keys and values become INT8 tiles (tile_layout.cuh).
//
// Keys of a head lose a vector that is near their mean (SageAttention: it moves all scores of a row alike),
// and have one scale for a tile. Values lose such a vector too, which is added to the outputs since weights
// add up to one, and are divided by a scale for each channel and one for the tile. Vectors and channels'
// scales only need to fit roughly: they come from 64 tokens spread over the sequence, read anew by each CTA.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "attention/cuda/prompt/plan.cuh"

namespace kvant::cuda {

inline constexpr int kQuantizeThreads = kPlanThreads;
inline constexpr int kSamples = 64;
// What is smaller counts as zero; scales of queries and keys multiplied must not.
inline constexpr float kLeastReach = 1e-15F;
// Of a channel's scale, where all samples are alike: a tile's scale is relative to it and is multiplied by up
// to 2^88 (weigh.cuh), which stays finite for all half-precision values.
inline constexpr float kLeastChannel = 0x1p-28F;
inline constexpr int kByteMax = 127;
inline constexpr int kByteCentre = 128;  // of values' unsigned bytes

template <bool IsHalf>
__device__ __forceinline__ float2 unpack_pair(std::uint32_t pair) {
  if constexpr (IsHalf) return __half22float2(*reinterpret_cast<const __half2*>(&pair));
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pair));
}

template <bool IsHalf>
__device__ __forceinline__ void unpack_octet(const uint4& from, float (&to)[8]) {
  const std::uint32_t words[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = unpack_pair<IsHalf>(words[i]);
    to[2 * i] = pair.x;
    to[2 * i + 1] = pair.y;
  }
}

__device__ __forceinline__ std::uint32_t join_low_bytes(std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                                        std::uint32_t d) {
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

// The largest of a CTA's numbers that are not negative.
__device__ inline float largest_of_cta(float x, std::uint32_t (&scratch)[kQuantizeThreads / 32]) {
  const std::uint32_t of_warp = __reduce_max_sync(~0U, __float_as_uint(x));
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = of_warp;
  __syncthreads();
  std::uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kQuantizeThreads / 32; ++i) largest = max(largest, scratch[i]);
  __syncthreads();
  return __uint_as_float(largest);
}

// The last sequence whose first tile is not behind this one.
__device__ inline int sequence_of_tile(const PromptArgs& args, int tile) {
  int low = 0;
  int high = args.n_seqs - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (first_tile(args.k_begins[middle], middle) <= tile)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

// A thread has 8 neighbouring channels of several tokens.
template <int D>
struct OctetsOfTile {
  static constexpr int kOctets = D / 8;
  static constexpr int kRowGroups = kQuantizeThreads / kOctets;
  static constexpr int kRows = kTileTokens / kRowGroups;  // of a thread
};

// Centres of all channels, and how far samples lie from them.
template <int D>
struct ChannelRanges {
  float centre[D];
  float reach[D];
};

template <int D, bool IsHalf>
__device__ void sample_channels(const unsigned short* rows, std::int64_t stride, int n_tokens, int octet,
                                int row_group, float (&scratch)[3][OctetsOfTile<D>::kRowGroups][D + 1],
                                ChannelRanges<D>& ranges) {
  using Octets = OctetsOfTile<D>;
  constexpr int kPerThread = kSamples / Octets::kRowGroups;
  float sum[8] = {};
  float low[8], high[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    low[i] = INFINITY;
    high[i] = -INFINITY;
  }
  if (n_tokens > 0) {
    uint4 octets[kPerThread];
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const std::int64_t token =
          static_cast<std::int64_t>(i * Octets::kRowGroups + row_group) * n_tokens / kSamples;
      octets[i] = *reinterpret_cast<const uint4*>(rows + token * stride + octet * 8);
    }
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      float x[8];
      unpack_octet<IsHalf>(octets[i], x);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        sum[j] += x[j];
        low[j] = fminf(low[j], x[j]);
        high[j] = fmaxf(high[j], x[j]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int place = i * Octets::kOctets + octet;  // in another bank than its neighbours'
    scratch[0][row_group][place] = sum[i];
    scratch[1][row_group][place] = low[i];
    scratch[2][row_group][place] = high[i];
  }
  __syncthreads();
  for (int channel = static_cast<int>(threadIdx.x); channel < D; channel += kQuantizeThreads) {
    float total = 0;
    float least = INFINITY;
    float greatest = -INFINITY;
    const int place = channel % 8 * Octets::kOctets + channel / 8;
#pragma unroll
    for (int i = 0; i < Octets::kRowGroups; ++i) {
      total += scratch[0][i][place];
      least = fminf(least, scratch[1][i][place]);
      greatest = fmaxf(greatest, scratch[2][i][place]);
    }
    const float centre = total / kSamples;
    ranges.centre[channel] = centre;
    ranges.reach[channel] = n_tokens > 0 ? fmaxf(greatest - centre, centre - least) : 0;
  }
  __syncthreads();
}

template <int D, bool IsHalf>
__global__ void __launch_bounds__(kQuantizeThreads, 3)
    quantize_tiles_kernel(const __grid_constant__ PromptArgs args, int block_rows) {
  using Octets = OctetsOfTile<D>;
  using Tile = PromptTile<D>;
  if (blockIdx.x == 0) {
    if (blockIdx.y == 0 && blockIdx.z == 0) plan_prompt(args, block_rows);
    return;
  }
  __shared__ float scratch[3][Octets::kRowGroups][D + 1];
  __shared__ ChannelRanges<D> ranges;
  __shared__ std::uint32_t maxima[kQuantizeThreads / 32];
  const int slot = static_cast<int>(blockIdx.x) - 1;
  const int head = static_cast<int>(blockIdx.y);
  const bool is_value = blockIdx.z != 0;
  const int seq = sequence_of_tile(args, slot);
  const int begin = args.k_begins[seq];
  const int n_tokens = args.k_begins[seq + 1] - begin;
  const int tile = slot - static_cast<int>(first_tile(begin, seq));
  if (tile > 0 && tile * kTileTokens >= n_tokens) return;

  const int thread = static_cast<int>(threadIdx.x);
  // A warp's keys are whole rows, its values whole rows of the transposed tile.
  const int octet = is_value ? thread / Octets::kRowGroups : thread % Octets::kOctets;
  const int row_group = is_value ? thread % Octets::kRowGroups : thread / Octets::kOctets;
  const PromptRows& from = is_value ? args.v : args.k;
  const auto* rows =
      static_cast<const unsigned short*>(from.data) + begin * from.token_stride + head * from.head_stride;
  const auto row_of = [&](int i) {
    return is_value ? value_token(row_group * (Octets::kRows / 4) + i / 4, i % 4)
                    : i * Octets::kRowGroups + row_group;
  };
  uint4 octets[Octets::kRows];
#pragma unroll
  for (int i = 0; i < Octets::kRows; ++i) {
    const int token = tile * kTileTokens + row_of(i);
    octets[i] = token < n_tokens
                    ? *reinterpret_cast<const uint4*>(rows + token * from.token_stride + octet * 8)
                    : make_uint4(0, 0, 0, 0);
  }
  sample_channels<D, IsHalf>(rows, from.token_stride, n_tokens, octet, row_group, scratch, ranges);

  float centre[8], inverse[8];
  // No channel's scale is less than 2^-10 of the largest, so that tiles' scales stay in bounds.
  float widest = 0;
  if (is_value) widest = largest_of_cta(ranges.reach[thread % D], maxima);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int channel = octet * 8 + i;
    centre[i] = ranges.centre[channel];
    const float reach = fmaxf(fmaxf(ranges.reach[channel], widest * 0x1p-10F), kLeastChannel);
    inverse[i] = is_value ? 1 / reach : 1;
    if (tile == 0 && row_group == 0) {
      float* channels = args.channels + (static_cast<std::int64_t>(seq) * args.n_kv_heads + head) * 3 * D;
      channels[(is_value ? D : 0) + channel] = centre[i];
      if (is_value) channels[2 * D + channel] = reach;
    }
  }
  float largest = 0;
#pragma unroll
  for (int i = 0; i < Octets::kRows; ++i) {
    float x[8];
    unpack_octet<IsHalf>(octets[i], x);
    if (tile * kTileTokens + row_of(i) < n_tokens) {
#pragma unroll
      for (int j = 0; j < 8; ++j) largest = fmaxf(largest, fabsf((x[j] - centre[j]) * inverse[j]));
    }
  }
  const float scale = fmaxf(largest_of_cta(largest, maxima), kLeastReach) / kByteMax;
  unsigned char* to = args.tiles + (static_cast<std::int64_t>(slot) * args.n_kv_heads + head) * Tile::kBytes;
  if (thread == 0) reinterpret_cast<float*>(to + Tile::kScales)[is_value ? 1 : 0] = scale;
#pragma unroll
  for (int j = 0; j < 8; ++j) inverse[j] /= scale;
  // The low byte of the sum is the rounded number, plus the centre for values.
  const float rounder = 0x1.8p23F + (is_value ? kByteCentre : 0);
  // Four rows at a time: a word of each channel of values.
#pragma unroll
  for (int first = 0; first < Octets::kRows; first += 4) {
    std::uint32_t bytes[4][8];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float x[8];
      unpack_octet<IsHalf>(octets[first + i], x);
      const bool is_token = tile * kTileTokens + row_of(first + i) < n_tokens;
#pragma unroll
      for (int j = 0; j < 8; ++j)
        bytes[i][j] = __float_as_uint(is_token ? fmaf(x[j] - centre[j], inverse[j], rounder) : rounder);
    }
    if (is_value) {
#pragma unroll
      for (int j = 0; j < 8; ++j)
        *reinterpret_cast<std::uint32_t*>(
            to + Tile::kValues +
            swizzled<kTileTokens>(octet * 8 + j, (row_group * (Octets::kRows / 4) + first / 4) * 4)) =
            join_low_bytes(bytes[0][j], bytes[1][j], bytes[2][j], bytes[3][j]);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        *reinterpret_cast<uint2*>(to + swizzled<D>(row_of(first + i), octet * 8)) =
            make_uint2(join_low_bytes(bytes[i][0], bytes[i][1], bytes[i][2], bytes[i][3]),
                       join_low_bytes(bytes[i][4], bytes[i][5], bytes[i][6], bytes[i][7]));
    }
  }
}

}  // namespace kvant::cuda
