// Loads the queries of a KV head's group and turns them into B operands of the score products. In the
// operands, queries are half precision, and a factor per query head restores their magnitude. For unquantized
// tiles, each number is split into two BF16 numbers, which lose nothing.
#pragma once

#include <cuda_bf16.h>

#include "device/cuda/common/ptx.cuh"
#include "device/cuda/decode/decode_args.h"
#include "device/cuda/decode/query_columns.cuh"

namespace kvant::cuda {

// own_block() returns the warp's block of channels (page_layout.h). 4 lanes share the channels of a key, and
// 8 lanes share the channels of a value. first_channel() returns the first of the block's channels in share
// `t`.
template <int D>
__device__ __forceinline__ int own_block() {
  return code_blocks(D) == 1 ? 0 : static_cast<int>(threadIdx.x) / kLanes % code_blocks(D);
}
template <int D>
__device__ __forceinline__ int first_channel(PageSide side, int t) {
  const int shares = side == PageSide::key ? 4 : 8;
  return t * (D / shares) + own_block<D>() * (block_dim(D) / shares);
}

// Loads channels [t * D/4, (t + 1) * D/4) of a warp's column, or a quarter of the warp's block of channels.
// The column is a query head of the segment's KV head. Columns beyond the segment's last are zeros.
template <int D, class Part>
__device__ __forceinline__ void load_query_channels(const DecodeArgs& args, const Part& segment,
                                                    int column_of_warp, int t, float (&x)[block_dim(D) / 4]) {
  constexpr int kChannels = block_dim(D) / 4;
  const int column = segment.first_column(args) + column_of_warp;
  const int n_columns = segment.n_columns(args);
  const ColumnQuery from = segment.query_of(args, min(column, n_columns - 1));
  const std::int64_t at = from.row * args.q_seq_stride +
                          (segment.head * args.group + from.head) * args.q_head_stride +
                          first_channel<D>(PageSide::key, t);
  // Rows have this many channels from the first loaded channel on.
  const int n = args.q_channels - first_channel<D>(PageSide::key, t);
  if (args.q_type == NumberType::f32) {
    const auto* row = reinterpret_cast<const float4*>(static_cast<const float*>(args.q) + at);
#pragma unroll
    for (int i = 0; i < kChannels; i += 4) {
      const float4 four = i < n ? row[i / 4] : make_float4(0, 0, 0, 0);
      x[i] = four.x;
      x[i + 1] = four.y;
      x[i + 2] = four.z;
      x[i + 3] = four.w;
    }
  } else {
    const auto* row = reinterpret_cast<const uint4*>(static_cast<const std::uint16_t*>(args.q) + at);
    uint4 packed[kChannels / 8];
#pragma unroll
    for (int i = 0; i < kChannels / 8; ++i) packed[i] = 8 * i < n ? row[i] : make_uint4(0, 0, 0, 0);
    const auto unpack = [&](const auto& pair) {
#pragma unroll
      for (int i = 0; i < kChannels / 8; ++i) {
        const std::uint32_t pairs[4] = {packed[i].x, packed[i].y, packed[i].z, packed[i].w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float2 two = pair(pairs[j]);
          x[8 * i + 2 * j] = two.x;
          x[8 * i + 2 * j + 1] = two.y;
        }
      }
    };
    if (args.q_type == NumberType::f16) {
      unpack([](std::uint32_t two) { return unpack_half2(two); });
    } else {
      unpack([](std::uint32_t two) {
        return make_float2(__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000U));
      });
    }
  }
  if (column < n_columns) return;
#pragma unroll
  for (int i = 0; i < kChannels; ++i) x[i] = 0;
}

// Holds a warp's query columns as half-precision B operands. Lane 4g + t has channels [t * D/4, (t + 1) *
// D/4) of column g, and absent columns are zeros. Each head is divided by a power of two that brings its
// largest magnitude into [1/2, 1). Products with a page's half-precision scales then neither overflow nor
// lose significant bits.
template <int D>
struct Query {
  std::uint32_t b[D / 16][2];
  __device__ __forceinline__ uint2 operator[](int k) const { return make_uint2(b[k][0], b[k][1]); }
  // A product with `b` times this factor is the score of head 2t or 2t + 1, in units of log 2.
  float factor[2];
};

// Makes B operands from queries. `x` holds this lane's channels [t * D/4, (t + 1) * D/4) of query head g.
template <int D>
__device__ __forceinline__ Query<D> pack_query(const float (&x)[D / 4], float softmax_scale_log2, int lane) {
  const int t = lane % 4;
  // Four separate maxima let four instructions overlap, because each maximum waits for the previous maximum.
  float tops[4] = {};
#pragma unroll
  for (int i = 0; i < D / 4; ++i) tops[i % 4] = fmaxf(tops[i % 4], fabsf(x[i]));
  float largest = fmaxf(fmaxf(tops[0], tops[1]), fmaxf(tops[2], tops[3]));
  largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, 2));
  const int exponent = min(max((__float_as_int(largest) >> 23) - 126, -100), 100);
  const float shrink = __int_as_float((127 - exponent) << 23);
  const float grow = __int_as_float((127 + exponent) << 23) * softmax_scale_log2;
  Query<D> query;
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    query.b[k][0] = pack_half2(x[4 * k] * shrink, x[4 * k + 1] * shrink);
    query.b[k][1] = pack_half2(x[4 * k + 2] * shrink, x[4 * k + 3] * shrink);
  }
  query.factor[0] = __shfl_sync(~0U, grow, t * 8);
  query.factor[1] = __shfl_sync(~0U, grow, t * 8 + 4);
  return query;
}

// Loads the warp's columns as B operands.
template <int D, class Part>
__device__ __forceinline__ Query<block_dim(D)> load_query(const DecodeArgs& args, const Part& segment,
                                                          int lane) {
  float x[block_dim(D) / 4];
  load_query_channels<D>(args, segment, lane / 4, lane % 4, x);
  return pack_query<block_dim(D)>(x, args.softmax_scale_log2, lane);
}

// Keeps a query's B operands in shared memory, for warps without registers for the operands in loops over
// pages.
template <int D>
struct KeptQuery {
  static constexpr int kBytes = D / 16 * kLanes * static_cast<int>(sizeof(uint2));
  const uint2* of_lane;

  __device__ __forceinline__ KeptQuery(const unsigned char* at, int lane)
      : of_lane(reinterpret_cast<const uint2*>(at) + lane) {}
  __device__ __forceinline__ uint2 operator[](int k) const { return of_lane[k * kLanes]; }

  static __device__ __forceinline__ void store(const Query<D>& query, unsigned char* at, int lane) {
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
      reinterpret_cast<uint2*>(at)[k * kLanes + lane] = make_uint2(query.b[k][0], query.b[k][1]);
  }
};

__device__ __forceinline__ std::uint32_t bf16_from_half2(std::uint32_t x) {
  const float2 pair = unpack_half2(x);
  return pack_bf16x2(pair.x, pair.y);
}

// Represents two numbers as sums of two BF16 numbers each, which have 8 significant bits. The sums represent
// half precision exactly, and F32 to 16 bits.
struct SplitPair {
  std::uint32_t high, low;
};
__device__ __forceinline__ SplitPair split_bf16x2(float x, float y) {
  SplitPair pair;
  pair.high = pack_bf16x2(x, y);
  pair.low = pack_bf16x2(x - __uint_as_float(pair.high << 16), y - __uint_as_float(pair.high & 0xffff0000U));
  return pair;
}

__device__ __forceinline__ SplitPair split_half2(std::uint32_t x) {
  const float2 pair = unpack_half2(x);
  return split_bf16x2(pair.x, pair.y);
}

}  // namespace kvant::cuda
