// Quantizes rows of queries and stores rows of outputs for prefill in 8-bit integers. Queries and outputs may
// be rotated on the way. Outputs regain the centres and scales of the values' channels.
#pragma once

#include "device/cuda/page/row_channels.cuh"
#include "device/cuda/prompt/blocks.cuh"
#include "device/cuda/prompt/quantize_tiles.cuh"
#include "device/cuda/prompt/weigh.cuh"

namespace kvant::cuda {

// Returns [3][D] numbers: the centres of keys, the centres of values, and the scales of values
// (channel_ranges.cuh).
template <int D>
__device__ __forceinline__ const float* channels_of(const PromptArgs& args, const PromptItem& item,
                                                    int head) {
  return args.channels + (static_cast<std::int64_t>(item.seq) * args.n_kv_heads + head / args.group) * 3 * D;
}

// With MayTurn, quantize_queries() and store_integer_rows() rotate queries and outputs if `args` asks for
// that. Kernels without MayTurn are smaller.

// Quantizes rows to INT8, eight channels at a time. `Lanes` neighbouring lanes share a row. A lane has every
// `Lanes`-th group of eight channels of a row. A lane counts its groups row by row. octet(n) must return the
// lane's nth group, and is called twice. store(n, bytes) takes the group's bytes. `largest` receives each
// row's largest magnitude.
template <int D, int Lanes, bool IsHalf, bool MayTurn, int N, class Octet, class Store>
__device__ __forceinline__ void quantize_queries(const PromptArgs& args, int lane, const Octet& octet,
                                                 float (&largest)[N * Lanes / (D / 8)], const Store& store) {
  constexpr int kOfRow = D / 8 / Lanes;
  const auto round = [&](const float(&x)[8], int n) {
    const float factor = reciprocal_fast(largest[n / kOfRow]) * kByteMax;
    const float factors[4] = {factor, factor, factor, factor};
    store(n, make_uint2(signed_bytes(x, factors), signed_bytes(x + 4, factors)));
  };
  if constexpr (MayTurn) {
    static_assert(kOfRow == 1);
    if (args.q_hadamard != 0) {
#pragma unroll
      for (int n = 0; n < N; ++n) {
        float x[8];
        unpack_octet<IsHalf>(octet(n), x);
        rotate_channels<Lanes>(lane, x);
        largest[n] = kLeastReach;
#pragma unroll
        for (int j = 0; j < 8; ++j) largest[n] = fmaxf(largest[n], fabsf(x[j]));
#pragma unroll
        for (int step = 1; step < Lanes; step *= 2)
          largest[n] = fmaxf(largest[n], __shfl_xor_sync(~0U, largest[n], step));
        round(x, n);
      }
      return;
    }
  }
  // Without their signs, the bits of two numbers compare like the numbers.
  constexpr std::uint32_t kUnsigned = 0x7fff7fff;
  std::uint32_t most[N / kOfRow] = {};
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const uint4 x = octet(n);
    most[n / kOfRow] = max_u16x2(most[n / kOfRow], max_u16x2(max_u16x2(x.x & kUnsigned, x.y & kUnsigned),
                                                             max_u16x2(x.z & kUnsigned, x.w & kUnsigned)));
  }
#pragma unroll
  for (int step = 1; step < Lanes; step *= 2)
#pragma unroll
    for (std::uint32_t& x : most) x = max_u16x2(x, __shfl_xor_sync(~0U, x, step));
#pragma unroll
  for (int row = 0; row < N / kOfRow; ++row) {
    const float2 both = unpack_pair<IsHalf>(most[row]);
    largest[row] = fmaxf(fmaxf(both.x, both.y), kLeastReach);
  }
#pragma unroll
  for (int n = 0; n < N; ++n) {
    float x[8];
    unpack_octet<IsHalf>(octet(n), x);
    round(x, n);
  }
}

// Stores a thread's two rows of a block, `row` and row + 8. `channels` holds the values' centres, then their
// scales. shift_of(i) returns the number that the keys' centre adds to the scores of row i, in units of log
// 2.
template <int D, bool IsHalf, bool MayTurn, class Shift>
__device__ __forceinline__ void store_integer_rows(const PromptArgs& args, const PromptItem& item, int head,
                                                   int row, int pair, const RowSums& rows,
                                                   const float (&sums)[D / 2], const float* channels,
                                                   const Shift& shift_of) {
  float inverse[2], centre[2];
  bool is_seen[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float mass = rows.mass[i];
    float offset = rows.offset[i];
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
      mass += __shfl_xor_sync(~0U, mass, step);
      offset += __shfl_xor_sync(~0U, offset, step);
    }
    is_seen[i] = mass > 0;
    inverse[i] = is_seen[i] ? 1 / mass : 0;
    centre[i] = -offset * kByteCentre * inverse[i];
    const int in_block = row + 8 * i;
    if (args.lse != nullptr && pair == 0 && in_block < item.n_rows) {
      // Weights were read as subnormal numbers, times 2^(kSumExponent - reference).
      const float log2_mass = log2f(mass) + (149 - kSumExponent) + rows.reference[i] + shift_of(i);
      args.lse[(item.first_row + in_block) * args.lse_token_stride + head * args.lse_head_stride] =
          mass > 0 ? log2_mass * 0.69314718F : -INFINITY;
    }
  }
  const float* centres = channels + 2 * pair;
  auto* out = static_cast<unsigned short*>(args.out) + (item.first_row + row) * args.out_token_stride +
              head * args.out_head_stride + 8 * pair;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float x[D / 4];  // x[2 j] is channel 8 j + 2 pair, and x[2 j + 1] the next channel.
#pragma unroll
    for (int j = 0; j < D / 8; ++j) {
      const float2 mean = *reinterpret_cast<const float2*>(centres + 8 * j);
      const float2 scale = *reinterpret_cast<const float2*>(centres + D + 8 * j);
      x[2 * j] = fmaf(fmaf(sums[4 * j + 2 * i], inverse[i], centre[i]), scale.x, mean.x);
      x[2 * j + 1] = fmaf(fmaf(sums[4 * j + 2 * i + 1], inverse[i], centre[i]), scale.y, mean.y);
    }
    if (MayTurn && args.out_hadamard != 0) rotate_channels<4>(static_cast<int>(threadIdx.x) % kLanes, x);
#pragma unroll
    for (int j = 0; j < D / 8; j += 4) {
      std::uint32_t words[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float low = x[2 * (j + k)], high = x[2 * (j + k) + 1];
        words[k] = !is_seen[i] ? 0 : IsHalf ? pack_half2(low, high) : pack_bf16x2(low, high);
      }
      transpose_quad(words, pair);
      if (row + 8 * i < item.n_rows)
        *reinterpret_cast<uint4*>(out + 8 * i * args.out_token_stride + 8 * j) =
            make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
}

}  // namespace kvant::cuda
