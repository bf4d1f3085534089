// Decode attention of short sequences of which nothing is sealed: a CTA a sequence and KV head, or a cluster
// of them, whose warps take tiles of 16 tokens in turn. A new token is appended on the way: rotated as the
// recipe wants, rounded, written to its page, and attended to from shared memory, as a tile of its own.
//
// In a model, weights push all else out of the caches between two layers, so that what counts is how many
// times something waits for memory: lengths and page tables, then pages; and how much code there is to fetch.
// The general kernel (decode_kernel.cuh) is ten times as large, and needs a schedule and barriers before it
// reads a page.
#pragma once

#include <cuda_bf16.h>

#include "attention/cuda/decode/leave_segment.cuh"
#include "attention/cuda/decode/plain_tile.cuh"
#include "attention/cuda/decode/query.cuh"
#include "attention/cuda/decode/short_args.h"
#include "attention/cuda/device/ptx.cuh"
#include "attention/cuda/seal/append_kernel.cuh"

namespace kvant::cuda {

struct ShortPair {
  static constexpr bool kCaps = true;
};

template <int D>
struct ShortShared {
  // By query head, in the four parts that the lanes of a group of four read, which so share no banks. When
  // all warps have them: what a CTA of a cluster leaves of the outputs, in the same places.
  float queries[kPaddedGroup][4][D / 4 + 4];
  float2 part_sums[kPaddedGroup];  // with it: the maximum and the sum of weights
  __nv_bfloat16 new_rows[2][D];    // the new token's key and value
  float max[kShortWarps][kPaddedGroup], sum[kShortWarps][kPaddedGroup];
  MergedOutputs<D, kShortWarps> outputs;

  // channel: even
  __device__ float2& part_of(int query, int channel) {
    return *reinterpret_cast<float2*>(&queries[query][channel / (D / 4)][channel % (D / 4)]);
  }
};

// The pages of both sides that hold a tile.
__device__ __forceinline__ int2 page_ids(const PageSource& tail, int seq, int head, int tile) {
  const std::int32_t* of_keys =
      tail.table + seq * tail.seq_stride + head * tail.head_stride + tile / kTokenTiles;
  return {of_keys[0], of_keys[tail.side_stride]};
}

// One side of a warp's tile: this lane's part of its N fragments.
template <int N>
__device__ __forceinline__ void load_tile(const PageSource& tail, int id, int head, int side, int tile,
                                          int lane, uint4 (&to)[N]) {
  const auto* from =
      reinterpret_cast<const uint4*>(tail.at(id, head, side)) + tile % kTokenTiles * N * kLanes + lane;
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = from[i * kLanes];
}

// The tile whose first token is the new one.
template <int N>
__device__ __forceinline__ void take_key(const __nv_bfloat16* row, int lane, uint4 (&to)[N]) {
  const auto* fours = reinterpret_cast<const uint2*>(row) + lane % 4 * N;
#pragma unroll
  for (int k = 0; k < N; ++k)
    to[k] = lane / 4 == 0 ? make_uint4(fours[k].x, 0, fours[k].y, 0) : make_uint4(0, 0, 0, 0);
}
template <int N>
__device__ __forceinline__ void take_value(const __nv_bfloat16* row, int lane, uint4 (&to)[N]) {
  const auto* pairs = reinterpret_cast<const std::uint32_t*>(row) + lane / 4 * N;
#pragma unroll
  for (int m = 0; m < N; ++m)
    to[m] = lane % 4 == 0 ? make_uint4(pairs[m] & 0xffffU, pairs[m] >> 16, 0, 0) : make_uint4(0, 0, 0, 0);
}

// The queries of the CTA's heads and the new token's rows, as they are stored, into shared memory; these to
// their page, too.
template <int D>
__device__ __forceinline__ void take_rows(const ShortArgs& args, int seq, int head, int first_query,
                                          int n_queries, int new_token, int warp, int lane,
                                          ShortShared<D>& shared) {
  constexpr int kOwn = D / kLanes;  // neighbouring channels of a lane
  const int n_rows = n_queries + (new_token < 0 ? 0 : 2);
#pragma unroll 1
  for (int i = warp; i < n_rows; i += kShortWarps) {
    const bool is_query = i < n_queries;
    const int side = is_query ? 0 : i - n_queries;
    const AppendedRows& rows = is_query ? args.queries : args.sides[side];
    float x[kOwn];
    load_row<D>(rows, is_query ? args.q_type : args.rows_type, seq,
                is_query ? head * args.group + first_query + i : head, head, lane, x);
    if (is_query) {
      float* to = shared.queries[i][lane / 8] + lane % 8 * kOwn;
#pragma unroll
      for (int j = 0; j < kOwn; j += 2) *reinterpret_cast<float2*>(to + j) = make_float2(x[j], x[j + 1]);
      continue;
    }
#pragma unroll
    for (int j = 0; j < kOwn; ++j) shared.new_rows[side][lane * kOwn + j] = __float2bfloat16(x[j]);
    if (first_query == 0) store_token<D>(args.tail, seq, head, side, new_token, lane, x);
  }
}

// Channels slice * kSlice + 2 * lane and the next of a query head's output, for all slices, of some of the
// tokens: sums of weights 2^(score - max + kWeightBits) times values, and of the weights.
template <int D>
struct HeadPart {
  float2 out[D / kSlice] = {};
  float max = kNoScore, sum = 0;

  __device__ void add(float weight, float sum_of_part, const float2 (&out_of_part)[D / kSlice]) {
    sum += weight * sum_of_part;
#pragma unroll
    for (int slice = 0; slice < D / kSlice; ++slice) {
      out[slice].x += weight * out_of_part[slice].x;
      out[slice].y += weight * out_of_part[slice].y;
    }
  }
};

// What the first n_warps have left of a query head; nth: among those that lie in shared memory.
template <int D>
__device__ __forceinline__ HeadPart<D> merge_tiles(const ShortShared<D>& shared, int n_warps, int query,
                                                   int nth, int lane) {
  HeadPart<D> head;
#pragma unroll
  for (int w = 0; w < kShortWarps; ++w)
    if (w < n_warps) head.max = fmaxf(head.max, shared.max[w][query]);
#pragma unroll
  for (int w = 0; w < kShortWarps; ++w) {
    if (w >= n_warps) break;
    float2 part[D / kSlice];
#pragma unroll
    for (int slice = 0; slice < D / kSlice; ++slice)
      part[slice] = shared.outputs.at(w, nth, slice * kSlice + 2 * lane);
    head.add(exp2_fast(shared.max[w][query] - head.max), shared.sum[w][query], part);
  }
  return head;
}

// What the CTAs of the cluster have left of it.
template <int D>
__device__ __forceinline__ HeadPart<D> merge_cluster(ShortShared<D>& shared, int n_ctas, int query,
                                                     int lane) {
  HeadPart<D> head;
  float2 sums[kMaxShortCtas], parts[kMaxShortCtas][D / kSlice];
#pragma unroll
  for (int cta = 0; cta < kMaxShortCtas; ++cta) {
    sums[cta] = {kNoScore, 0};
    if (cta < n_ctas) sums[cta] = load_of_cluster(shared.part_sums[query], cta);
#pragma unroll
    for (int slice = 0; slice < D / kSlice; ++slice)
      if (cta < n_ctas)
        parts[cta][slice] = load_of_cluster(shared.part_of(query, slice * kSlice + 2 * lane), cta);
  }
#pragma unroll
  for (int cta = 0; cta < kMaxShortCtas; ++cta) head.max = fmaxf(head.max, sums[cta].x);
#pragma unroll
  for (int cta = 0; cta < kMaxShortCtas; ++cta)
    if (cta < n_ctas) head.add(exp2_fast(sums[cta].x - head.max), sums[cta].y, parts[cta]);
  return head;
}

template <int D>
__device__ __forceinline__ void store_head(const ShortArgs& args, const HeadPart<D>& head, int seq,
                                           int kv_head, int query, int lane) {
  constexpr int kSlices = D / kSlice;
  float x[2 * kSlices];
#pragma unroll
  for (int slice = 0; slice < kSlices; ++slice) {
    const float2 two = normalize<D>(args, seq, kv_head * args.group + query, slice * kSlice + 2 * lane,
                                    head.out[slice], head.max, head.sum);
    x[2 * slice] = two.x;
    x[2 * slice + 1] = two.y;
  }
  if (args.out_hadamard != 0) rotate_channels(lane, x);
#pragma unroll
  for (int slice = 0; slice < kSlices; ++slice)
    store_pair(args, seq, kv_head, query, slice * kSlice + 2 * lane, {x[2 * slice], x[2 * slice + 1]}, D);
}

// Grid: CTAs of a cluster, KV heads, sequences times passes of kPaddedGroup query heads.
template <int D>
__global__ void __launch_bounds__(kShortWarps* kLanes, 1)
    short_kernel(const __grid_constant__ ShortArgs args) {
  __shared__ __align__(16) ShortShared<D> shared;
  wait_for_predecessors();
  admit_successors();
  static_assert(kMaxGroup <= 2 * kPaddedGroup);
  const int two_passes = args.group > kPaddedGroup ? 1 : 0;
  const int cta = static_cast<int>(blockIdx.x), n_ctas = static_cast<int>(gridDim.x);
  const int head = static_cast<int>(blockIdx.y), seq = static_cast<int>(blockIdx.z) >> two_passes;
  const int first_query = (static_cast<int>(blockIdx.z) & two_passes) * kPaddedGroup;
  const int n_queries = min(args.group - first_query, kPaddedGroup);
  const int warp = static_cast<int>(threadIdx.x) / kLanes, lane = static_cast<int>(threadIdx.x) % kLanes;
  const int first_tile = cta * kShortWarps;
  // Of a page before it is known that the warp has a tile: both come from memory together.
  int2 ids{};
  if (first_tile / kTokenTiles < args.table_pages) ids = page_ids(args.tail, seq, head, first_tile + warp);
  const int n_tokens = args.tail_tokens[seq];
  if (n_tokens == 0) return;
  const int hidden = args.first_tokens == nullptr ? 0 : args.first_tokens[seq];
  const int n_new = args.sides[0].rows == nullptr ? 0 : 1;
  const int n_stored = n_tokens - n_new;  // that were there before
  const int n_stored_tiles = (n_stored + kTileTokens - 1) / kTileTokens;
  const int n_tiles = n_stored_tiles + n_new;
  const bool has_new = n_new != 0 && n_stored_tiles / kShortWarps % n_ctas == cta;
  // Where registers suffice, a tile's values are on their way before its scores are known.
  constexpr bool kValuesEarly = D <= 128;
  uint4 keys[D / 16], values[D / 16];
  if (first_tile + warp < n_stored_tiles) {
    load_tile(args.tail, ids.x, head, 0, first_tile + warp, lane, keys);
    if (kValuesEarly) load_tile(args.tail, ids.y, head, 1, first_tile + warp, lane, values);
  }
  take_rows(args, seq, head, first_query, n_queries, has_new ? n_stored : -1, warp, lane, shared);
  __syncthreads();

  Accumulator<D> acc = {};
  acc.max[0] = acc.max[1] = kNoScore;
  const bool has_tile = first_tile + warp < n_tiles;
  if (has_tile) {
    const int g = lane / 4, t = lane % 4;
    float x[D / 4];
#pragma unroll
    for (int i = 0; i < D / 4; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(shared.queries[min(g, n_queries - 1)][t] + i);
      x[i] = g < n_queries ? four.x : 0;
      x[i + 1] = g < n_queries ? four.y : 0;
      x[i + 2] = g < n_queries ? four.z : 0;
      x[i + 3] = g < n_queries ? four.w : 0;
    }
    const Query<D> query = pack_query<D>(x, args.softmax_scale_log2, lane);
#pragma unroll 1
    for (int i = first_tile + warp; i < n_tiles; i += n_ctas * kShortWarps) {
      const bool is_new = i == n_stored_tiles;
      if (is_new) {
        take_key(shared.new_rows[0], lane, keys);
      } else if (i != first_tile + warp) {
        ids = page_ids(args.tail, seq, head, i);
        load_tile(args.tail, ids.x, head, 0, i, lane, keys);
        if (kValuesEarly) load_tile(args.tail, ids.y, head, 1, i, lane, values);
      }
      const int n = is_new ? 1 : n_stored - i * kTileTokens;
      float s[1][4];
      score_tile(
          query, [&](int k) { return keys[k]; }, s);
      weigh_tile<ShortPair>(args, SeenTokens{is_new ? 0 : hidden - i * kTileTokens, n}, lane, s, acc);
      if (is_new) {
        take_value(shared.new_rows[1], lane, values);
      } else if (!kValuesEarly) {
        load_tile(args.tail, ids.y, head, 1, i, lane, values);
      }
      mix_tile(
          s, n, lane, [&](int m) { return values[m]; }, acc);
    }
#pragma unroll
    for (int step = 4; step < 32; step *= 2) {
      acc.sum[0] += __shfl_xor_sync(~0U, acc.sum[0], step);
      acc.sum[1] += __shfl_xor_sync(~0U, acc.sum[1], step);
    }
    if (g == 0) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        shared.max[warp][2 * t + h] = acc.max[h];
        shared.sum[warp][2 * t + h] = acc.sum[h];
      }
    }
  }
#pragma unroll 1
  for (int first = 0; first < n_queries; first += kMergedHeads) {
    if (first > 0) __syncthreads();  // the outputs have been read
    if (has_tile && lane % 4 / 2 == first / kMergedHeads) shared.outputs.put(acc, warp, lane);
    __syncthreads();
    if (warp >= min(n_queries - first, kMergedHeads)) continue;
    const int query = first + warp;
    const HeadPart<D> part = merge_tiles(shared, min(n_tiles - first_tile, kShortWarps), query, warp, lane);
    if (n_ctas == 1) {
      store_head(args, part, seq, head, first_query + query, lane);
      continue;
    }
    if (lane == 0) shared.part_sums[query] = {part.max, part.sum};
#pragma unroll
    for (int slice = 0; slice < D / kSlice; ++slice)
      shared.part_of(query, slice * kSlice + 2 * lane) = part.out[slice];
  }
  if (n_ctas == 1) return;
  cluster_sync();
  static_assert(kPaddedGroup <= kShortWarps);
  const int query = cta + n_ctas * warp;  // that this warp stores: all CTAs have some
  if (query < n_queries)
    store_head(args, merge_cluster(shared, n_ctas, query, lane), seq, head, first_query + query, lane);
  cluster_sync();  // until then others read what this CTA has left
}

}  // namespace kvant::cuda
