// Defines the functions that both kernels for short sequences share (short_kernel.cuh,
// short_sealed_kernel.cuh). The functions bring rows to shared memory, load tiles of unquantized tokens, and
// merge outputs over a CTA's warps and a cluster's CTAs. Args is the kernel's argument type (ShortArgs,
// ShortSealedArgs).
#pragma once

#include <cuda_bf16.h>

#include "device/cuda/common/ptx.cuh"
#include "device/cuda/decode/leave_segment.cuh"
#include "device/cuda/decode/plain_tile.cuh"
#include "device/cuda/decode/query.cuh"
#include "device/cuda/decode/short_args.h"
#include "device/cuda/seal/append_kernel.cuh"

namespace kvant::cuda {

// Takes the place of a pair of formats if only unquantized tiles are read.
struct ShortPair {
  static constexpr bool kCaps = true;
};

// Describes the work of a warp.
struct ShortPlace {
  // The cluster has n_ctas CTAs and serves one sequence and KV head.
  int cta, n_ctas;
  int seq, head;
  // The cluster serves n_queries query heads of the KV head, from first_query on.
  int first_query, n_queries;
  int warp, lane;
};

// Holds a CTA's queries in shared memory.
template <int D>
struct QueryRows {
  // Queries have the shape [query head][quarter of the channels]. Each of four lanes reads a quarter, and
  // padding avoids bank conflicts.
  float queries[kPaddedGroup][4][D / 4 + 4];

  // Reads channels [t * D/4, (t + 1) * D/4) of a query. Queries from n on are zeros.
  __device__ __forceinline__ void read_query(int query, int n, int t, float (&x)[D / 4]) const {
#pragma unroll
    for (int i = 0; i < D / 4; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(queries[min(query, n - 1)][t] + i);
      x[i] = query < n ? four.x : 0;
      x[i + 1] = query < n ? four.y : 0;
      x[i + 2] = query < n ? four.z : 0;
      x[i + 3] = query < n ? four.w : 0;
    }
  }
};

// Holds the static shared memory of a CTA without sealed pages. After all warps have read the queries, a
// cluster's CTA leaves its part of the outputs in their memory.
template <int D>
struct ShortShared : QueryRows<D> {
  using QueryRows<D>::queries;
  // The maximum and sum of weights of each query head belong to the outputs in `queries`.
  float2 part_sums[kPaddedGroup];
  __nv_bfloat16 new_rows[2][D];  // [2][D]: the new token's key and value
  float max[kShortWarps][kPaddedGroup], sum[kShortWarps][kPaddedGroup];
  MergedOutputs<D, kShortWarps> outputs;

  // Returns two channels of a query head's part of the output. `channel` is even.
  __device__ float2& part_of(int query, int channel) {
    return *reinterpret_cast<float2*>(&queries[query][channel / (D / 4)][channel % (D / 4)]);
  }
};

// Returns the ids of a page's key and value side from the table.
__device__ __forceinline__ int2 page_ids(const PageSource& pages, int seq, int head, int page) {
  const std::int32_t* of_keys = pages.table + seq * pages.seq_stride + head * pages.head_stride + page;
  return {of_keys[0], of_keys[pages.side_stride]};
}

// Returns one side of a tile in the page with this id.
template <int D>
__device__ __forceinline__ const uint4* find_tile(const PageSource& pages, int id, int head, int side,
                                                  int tile) {
  return reinterpret_cast<const uint4*>(pages.at(id, head, side)) + tile % kTokenTiles * (D / 16) * kLanes;
}

// Loads this lane's part of a tile's N MMA operands.
template <int N>
__device__ __forceinline__ void load_tile(const PageSource& pages, int id, int head, int side, int tile,
                                          int lane, uint4 (&to)[N]) {
  const uint4* from = find_tile<16 * N>(pages, id, head, side, tile) + lane;
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = from[i * kLanes];
}

// take_key() and take_value() make a tile whose first token is the new token, and whose other tokens are
// zeros.
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

// Brings the queries of the cluster's heads and the new token's rows into shared memory. Shared has QueryRows
// and new_rows. The new token's rows are rounded, and also go to their page. `new_token` is the token's index
// in the tail, or negative if this CTA has none. keep(i, x) may store query i in another form, too.
template <int D, class Args, class Shared, class Keep>
__device__ __forceinline__ void take_rows(const Args& args, const ShortPlace& at, int new_token,
                                          Shared& shared, const Keep& keep) {
  constexpr int kOwn = D / kLanes;  // neighbouring channels of a lane
  const int n_rows = at.n_queries + (new_token < 0 ? 0 : 2);
#pragma unroll 1
  for (int i = at.warp; i < n_rows; i += kShortWarps) {
    const bool is_query = i < at.n_queries;
    const int side = is_query ? 0 : i - at.n_queries;
    const AppendedRows& rows = is_query ? args.queries : args.sides[side];
    float x[kOwn];
    load_row<D>(rows, is_query ? args.q_type : args.rows_type, at.seq,
                is_query ? at.head * args.group + at.first_query + i : at.head, at.head, at.lane, x);
    if (is_query) {
      float* to = shared.queries[i][at.lane / 8] + at.lane % 8 * kOwn;
#pragma unroll
      for (int j = 0; j < kOwn; j += 2) *reinterpret_cast<float2*>(to + j) = make_float2(x[j], x[j + 1]);
      keep(i, x);
      continue;
    }
#pragma unroll
    for (int j = 0; j < kOwn; ++j) shared.new_rows[side][at.lane * kOwn + j] = __float2bfloat16(x[j]);
    if (at.first_query == 0) store_token<D>(args.tail, at.seq, at.head, side, new_token, at.lane, x);
  }
}

// Holds a query head's output over some of the tokens. A lane has channels slice * kSlice + 2 * lane and
// slice * kSlice + 2 * lane + 1 of each slice. The output is a sum of weights 2^(score - max + kWeightBits)
// times values, and `sum` is the sum of the weights.
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

// Merges the partial outputs that warps have left for a query head. `warps` has a bit for each warp that has
// left a part. `nth` is the head's index among the heads in shared memory.
template <int D>
__device__ __forceinline__ HeadPart<D> merge_tiles(const ShortShared<D>& shared, std::uint32_t warps,
                                                   int query, int nth, int lane) {
  HeadPart<D> head;
#pragma unroll
  for (int w = 0; w < kShortWarps; ++w)
    if ((warps >> w & 1) != 0) head.max = fmaxf(head.max, shared.max[w][query]);
#pragma unroll
  for (int w = 0; w < kShortWarps; ++w) {
    if ((warps >> w & 1) == 0) continue;
    float2 part[D / kSlice];
#pragma unroll
    for (int slice = 0; slice < D / kSlice; ++slice)
      part[slice] = shared.outputs.at(w, nth, slice * kSlice + 2 * lane);
    head.add(exp2_fast(shared.max[w][query] - head.max), shared.sum[w][query], part);
  }
  return head;
}

// Merges the partial outputs that the cluster's CTAs have left for a query head.
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

// Normalizes and stores the output of a query head. `query` is the head's index within its KV head's group.
template <int D, class Args>
__device__ __forceinline__ void store_head(const Args& args, const HeadPart<D>& head, int seq, int kv_head,
                                           int query, int lane) {
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

// Turns the accumulators of all warps into outputs. One CTA of the cluster stores each output. All threads of
// the cluster must call this function. `warps` has a bit for each warp with a part, and `acc` is this warp's
// part. A cluster of one CTA has separate, shorter code.
template <int D, class Args>
__device__ __forceinline__ void leave_outputs(const Args& args, const ShortPlace& at, std::uint32_t warps,
                                              Accumulator<D>& acc, ShortShared<D>& shared) {
  const bool has_some = (warps >> at.warp & 1) != 0;
  if (has_some) {
#pragma unroll
    for (int step = 4; step < 32; step *= 2) {
      acc.sum[0] += __shfl_xor_sync(~0U, acc.sum[0], step);
      acc.sum[1] += __shfl_xor_sync(~0U, acc.sum[1], step);
    }
    if (at.lane < 4) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        shared.max[at.warp][2 * at.lane + h] = acc.max[h];
        shared.sum[at.warp][2 * at.lane + h] = acc.sum[h];
      }
    }
  }
#pragma unroll 1
  for (int first = 0; first < at.n_queries; first += kMergedHeads) {
    // All warps must have read the previous heads' outputs, whose memory is reused.
    if (first > 0) __syncthreads();
    if (has_some && at.lane % 4 / 2 == first / kMergedHeads) shared.outputs.put(acc, at.warp, at.lane);
    __syncthreads();
    if (at.warp >= min(at.n_queries - first, kMergedHeads)) continue;
    const int query = first + at.warp;
    const HeadPart<D> part = merge_tiles(shared, warps, query, at.warp, at.lane);
    if (at.n_ctas == 1) {
      store_head(args, part, at.seq, at.head, at.first_query + query, at.lane);
      continue;
    }
    if (at.lane == 0) shared.part_sums[query] = {part.max, part.sum};
#pragma unroll
    for (int slice = 0; slice < D / kSlice; ++slice)
      shared.part_of(query, slice * kSlice + 2 * at.lane) = part.out[slice];
  }
  if (at.n_ctas == 1) return;
  cluster_sync();
  static_assert(kPaddedGroup <= kShortWarps);
  // CTAs take query heads in turn, and each warp of a CTA stores at most one query head.
  const int query = at.cta + at.n_ctas * at.warp;
  if (query < at.n_queries)
    store_head(args, merge_cluster(shared, at.n_ctas, query, at.lane), at.seq, at.head,
               at.first_query + query, at.lane);
  // Until this barrier, other CTAs read the partial outputs of this CTA.
  cluster_sync();
}

}  // namespace kvant::cuda
