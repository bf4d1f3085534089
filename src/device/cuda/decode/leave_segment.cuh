// Ends a CTA's work on a sequence and KV head. The CTA's warps merge their accumulators through shared
// memory. If the CTA holds the whole sequence, the warps normalize and store the output. Otherwise, the warps
// leave a partial result, and the last CTA to leave a partial result combines all of them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "device/cuda/common/ptx.cuh"
#include "device/cuda/decode/decode_args.h"
#include "device/cuda/decode/partial_results.cuh"
#include "device/cuda/decode/query_columns.cuh"
#include "device/cuda/decode/work_range.cuh"
#include "device/cuda/page/row_channels.cuh"

namespace kvant::cuda {

// Weights are 2^(score - maximum + kWeightBits). The factor 2^kWeightBits keeps more of the small weights
// above the smallest half-precision number.
inline constexpr float kWeightBits = 4;

// Holds a lane's sums of weights times values. For lane 4g + t, out[m] holds channel g * D/8 + 2 * m and then
// the next channel, each with heads 2t and 2t + 1. D is the number of a warp's channels, which is a block if
// warps share pages by channels.
template <int D>
struct Accumulator {
  float out[D / 16][4];
  // The sums cover only this lane's tokens.
  float max[2], sum[2];
};

// Holds the accumulators that warps leave in shared memory for merging, kMergedHeads query heads at a time.
template <int D, int Warps = max_consumer_warps(D)>
struct MergedOutputs {
  static constexpr int kMTiles = block_dim(D) / 16;
  // The padding keeps writers and readers in different banks.
  static constexpr int kRow = 16 + 16 / kMTiles;
  // Outputs have the shape [warp][h][m][(t % 2) * 8 + g]. An element has two channels, from g * D/8 + 2 * m
  // on, of head 2 * (t % 2) + h.
  float2 out[Warps][2][kMTiles][kRow];

  // Stores a lane's sums. Only lanes whose t / 2 selects the heads that are merged now may call put().
  __device__ void put(const Accumulator<block_dim(D)>& acc, int warp, int lane) {
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
      for (int h = 0; h < 2; ++h)
        out[warp][h][m][lane % 2 * 8 + lane / 4] = make_float2(acc.out[m][h], acc.out[m][h + 2]);
    }
  }
  // Returns two neighbouring channels of a head. `head` counts from the first head in the buffer. `channel`
  // is even and must belong to the warp.
  __device__ float2 at(int warp, int head, int channel) const {
    return out[warp][head % 2][channel % (D / 8) / 2 % kMTiles][head / 2 * 8 + channel / (D / 8)];
  }
};
// Holds the softmax maxima and sums of weights that warps leave for merging, as [warp][column].
struct MergedSums {
  float max[kMaxConsumerWarps][kPaddedGroup];
  float sum[kMaxConsumerWarps][kPaddedGroup];
};
template <class First, class Second>
struct MergedParts : First, Second {};

// Holds everything that warps leave for merging. On GPUs with little shared memory, outputs come last,
// because the buffer ends with the outputs of the CTA's last warp.
template <int D>
struct MergeBuffer
    : std::conditional_t<Architecture::kLargeSharedMemory, MergedParts<MergedOutputs<D>, MergedSums>,
                         MergedParts<MergedSums, MergedOutputs<D>>> {};

// A function with the template parameter Args accepts the arguments of any kernel with outputs (DecodeArgs,
// ShortArgs).

template <class Args>
__device__ __forceinline__ void store_out(const Args& args, int seq, int head, int channel, float x) {
  const std::int64_t at = seq * args.out_seq_stride + head * args.out_head_stride + channel;
  if (args.out_type == NumberType::f32) {
    static_cast<float*>(args.out)[at] = x;
  } else if (args.out_type == NumberType::f16) {
    static_cast<__half*>(args.out)[at] = __float2half_rn(x);
  } else {
    static_cast<__nv_bfloat16*>(args.out)[at] = __float2bfloat16(x);
  }
}

// Adds KVLinC's correction to two channels and to the sum of weights. Exponentials are relative to the
// largest score. A relative correction is added to the exponentials unchanged. An absolute correction belongs
// to e^score, so exponentials are rescaled first if the largest score is below zero.
__device__ __forceinline__ void join_correction(const DecodeArgs& args, std::int64_t row, int d, int channel,
                                                float2& out, float& max, float& sum) {
  float share = 1 << static_cast<int>(kWeightBits);
  if (args.correction_absolute != 0) {
    const float rescale = exp2_fast(fminf(max, 0));
    out.x *= rescale;
    out.y *= rescale;
    sum *= rescale;
    max = fmaxf(max, 0);
    share *= exp2_fast(-max);
  }
  const float2 numerator = *reinterpret_cast<const float2*>(args.correction_numerator + row * d + channel);
  out.x += share * numerator.x;
  out.y += share * numerator.y;
  sum += share * args.correction_denominator[row];
}

// Adds a sink's logit to the sum of weights. No value belongs to the logit, so `out` only follows the new
// maximum.
__device__ __forceinline__ void join_sink(float logit, float2& out, float& max, float& sum) {
  const float score = logit * 1.44269504F;
  const float higher = fmaxf(max, score);
  const float factor = exp2_fast(max - higher);
  out.x *= factor;
  out.y *= factor;
  sum = sum * factor + exp2_fast(score - higher + kWeightBits);
  max = higher;
}

// Computes the stored values of two neighbouring channels of a query head, before any rotation. The call for
// channel 0 also stores the row's LSE. `out`, `max` and `sum` belong to weights of 2^(score - max +
// kWeightBits).
template <int D, class Args>
__device__ __forceinline__ float2 normalize(const Args& args, int seq, int head, int channel, float2 out,
                                            float max, float sum) {
  const std::int64_t row = static_cast<std::int64_t>(seq) * args.n_kv_heads * args.group + head;
  if constexpr (requires { args.correction_numerator; }) {
    if (args.correction_numerator != nullptr) join_correction(args, row, D, channel, out, max, sum);
  }
  if (args.sink_logits != nullptr) join_sink(args.sink_logits[head], out, max, sum);
  const float share = sum > 0 ? 1 / sum : 0;
  if (channel == 0 && args.lse != nullptr) args.lse[row] = (max - kWeightBits + log2f(sum)) * 0.69314718F;
  return {out.x * share, out.y * share};
}

// Stores two neighbouring channels times their factors. Channels that rows do not have are left out.
template <class Args>
__device__ __forceinline__ void store_pair(const Args& args, int seq, int kv_head, int query, int channel,
                                           float2 out, int d) {
  if (channel >= args.out_channels) return;
  if (args.out_factors != nullptr) {
    out.x *= args.out_factors[kv_head * d + channel];
    out.y *= args.out_factors[kv_head * d + channel + 1];
  }
  store_out(args, seq, kv_head * args.group + query, channel, out.x);
  store_out(args, seq, kv_head * args.group + query, channel + 1, out.y);
}

// Merges the results that consumer warps have left for a column, which is counted from the first column in
// the buffer. With Several, only every 2^step_log2-th warp from `first_warp` on has left results for the
// column.
template <int D, bool Several>
__device__ __forceinline__ PartialResult merge_warps(const MergeBuffer<D>& buffer, int n_warps, int first,
                                                     int column, int channel, int first_warp, int step_log2) {
  constexpr int kWarps = max_consumer_warps(D);
  // All loads are issued before any result is used, and without branches. Otherwise each load would wait for
  // the previous load.
  PartialResult of[kWarps];
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    const int w = Several ? first_warp + (i << step_log2) : i;
    // Large shared memory also has space for absent warps. Addresses are then one address plus constants.
    const int there = !Several && Architecture::kLargeSharedMemory ? i : min(w, n_warps - 1);
    of[i] = {buffer.at(there, column, channel), buffer.max[there][first + column],
             buffer.sum[there][first + column]};
    if (w >= n_warps) of[i] = {{0, 0}, kNoScore, 0};
  }
  PartialResult result{{0, 0}, kNoScore, 0};
#pragma unroll
  for (int i = 0; i < kWarps; ++i) result.max = fmaxf(result.max, of[i].max);
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    const float weight = exp2_fast(of[i].max - result.max);
    result.sum += weight * of[i].sum;
    result.out.x += weight * of[i].out.x;
    result.out.y += weight * of[i].out.y;
  }
  return result;
}

// Computes the same result as merge_warps(). This function takes fewer registers, but its loads wait for each
// other.
template <int D>
__device__ __forceinline__ PartialResult merge_warps_in_turn(const MergeBuffer<D>& buffer, int n_warps,
                                                             int first, int column, int channel,
                                                             int first_warp, int step_log2) {
  PartialResult result{{0, 0}, kNoScore, 0};
#pragma unroll
  for (int i = 0; i < max_consumer_warps(D); ++i) {
    const int w = first_warp + (i << step_log2);
    if (w < n_warps) result.max = fmaxf(result.max, buffer.max[w][first + column]);
  }
#pragma unroll
  for (int i = 0; i < max_consumer_warps(D); ++i) {
    const int w = first_warp + (i << step_log2);
    if (w >= n_warps) continue;
    const float weight = exp2_fast(buffer.max[w][first + column] - result.max);
    const float2 part = buffer.at(w, column, channel);
    result.sum += weight * buffer.sum[w][first + column];
    result.out.x += weight * part.x;
    result.out.y += weight * part.y;
  }
  return result;
}

// Returns the number of columns for which a CTA's partial results have space.
__device__ __forceinline__ constexpr int columns_of_partials(const DecodeArgs&) {
  return kPaddedGroup;
}
__device__ __forceinline__ int columns_of_partials(const SeveralArgs& args) {
  return args.queries.n_columns;
}

__device__ __forceinline__ constexpr int log2_of(int power_of_two) {
  return power_of_two == 1 ? 0 : 1 + log2_of(power_of_two / 2);
}

// Merges the accumulators of all consumer warps and stores the result or leaves it for other CTAs. All
// consumer warps must call this function. 2^sharers_log2 warps share pages by columns.
template <int D, class Args, class Part>
__device__ __forceinline__ void leave_segment(const Args& args, int sharers_log2,
                                              const WorkRange<WarpPlace>& range, const Part& segment,
                                              Accumulator<block_dim(D)>& acc, MergeBuffer<D>& buffer,
                                              int thread, int n_threads) {
  const int n_warps = n_threads / kLanes;
  const int warp = thread / kLanes;
  const int lane = thread % kLanes;
  const int g = lane / 4;
  const int t = lane % 4;
#pragma unroll
  for (int step = 4; step < 32; step *= 2) {
    acc.sum[0] += __shfl_xor_sync(~0U, acc.sum[0], step);
    acc.sum[1] += __shfl_xor_sync(~0U, acc.sum[1], step);
  }
  // Channels are divided into this many blocks, one a warp.
  constexpr int kBlocks = code_blocks(D);
  // All warps must have read the previous segment's buffer. If warps add scores in the buffer's memory, they
  // must also have read the last page's scores.
  if (kBlocks > 1 || segment.before > 0) named_barrier(1, n_threads);
  if (g == 0) {
    for (int h = 0; h < 2; ++h) {
      buffer.max[warp][2 * t + h] = acc.max[h];
      buffer.sum[warp][2 * t + h] = acc.sum[h];
    }
  }
  const bool whole = segment.first == 0 && segment.last == segment.n_units;
  constexpr int kSlices = D / kSlice;  // slices of a query head
  const int n_columns = segment.n_columns(args);
  // A warp processes one slice at a time, or all slices of a query head if outputs are rotated. One loop
  // serves both cases, because small code matters. The loop runs once a segment, and its code usually comes
  // from memory.
  const int together_log2 = args.out_hadamard != 0 ? log2_of(kSlices) : 0;
  const int together = 1 << together_log2;
  const SharingCtas ctas{range.first_cta(segment), range.last_cta(segment)};
  // Kernels for several queries need their registers for products with more columns, so they exchange results
  // by fences.
  using Shared = std::conditional_t<Part::kSeveralQueries, FencedResults<D>, MarkedResults<D>>;
  float x[2 * kSlices];  // the lane's channels of the slices that the warp stores
  const auto channel = [&](int slice) { return slice * kSlice + 2 * lane; };
  const auto keep = [&](int query, int slice, int nth, const PartialResult& result) {
    const ColumnQuery to = segment.query_of(args, query);
    const float2 out = normalize<D>(args, to.row, segment.head * args.group + to.head, channel(slice),
                                    result.out, result.max, result.sum);
#pragma unroll
    for (int s = 0; s < kSlices; ++s) {
      x[2 * s] = s == nth ? out.x : x[2 * s];
      x[2 * s + 1] = s == nth ? out.y : x[2 * s + 1];
    }
  };
  const auto store = [&](int query, int first_slice) {
    const ColumnQuery to = segment.query_of(args, query);
    if (args.out_hadamard != 0) rotate_channels(lane, x);
#pragma unroll
    for (int s = 0; s < kSlices; ++s)
      if (s < together)
        store_pair(args, to.row, segment.head, to.head, channel(first_slice + s), {x[2 * s], x[2 * s + 1]},
                   D);
  };
  const auto shared_slice = [&](int query, int slice, int level) {
    return ctas.slice(static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), query * kSlices + slice,
                      level, columns_of_partials(args), lane);
  };
  for (int first = 0; first < n_columns; first += kMergedHeads) {
    if (first > 0) named_barrier(1, n_threads);
    // of_warp is the column's index within a warp. `sharer` is the index of the column's warp among the warps
    // that share pages.
    const int of_warp = Part::kSeveralQueries ? first % kPaddedGroup : first;
    const int sharer = Part::kSeveralQueries ? first / kPaddedGroup : 0;
    const bool is_ours = !Part::kSeveralQueries || (warp & ((1 << sharers_log2) - 1)) == sharer;
    if (t / 2 == of_warp / kMergedHeads && is_ours) buffer.put(acc, warp, lane);
    named_barrier(1, n_threads);
    const int n_heads = min(n_columns - first, kMergedHeads);
    for (int i = warp; i < (n_heads * kSlices) >> together_log2; i += n_warps) {
      const int query = first + (i << together_log2) / kSlices;
      const int first_slice = (i << together_log2) % kSlices;
#pragma unroll 1
      for (int nth = 0; nth < together; ++nth) {
        const int slice = first_slice + nth;
        const int block = kBlocks == 1 ? 0 : block_channel(PageSide::value, D, channel(slice)).block;
        const int from_warp = sharer + block;
        const int step_log2 = sharers_log2 + log2_of(kBlocks);
        const PartialResult mine = [&] {
          if constexpr (Part::kSeveralQueries)
            return merge_warps_in_turn<D>(buffer, n_warps, of_warp, query - first, channel(slice), from_warp,
                                          step_log2);
          else
            return merge_warps<D, (kBlocks > 1)>(buffer, n_warps, of_warp, query - first, channel(slice),
                                                 from_warp, step_log2);
        }();
        if (whole) {
          keep(query, slice, nth, mine);
        } else {
          Shared::leave(args.schedule, shared_slice(query, slice, 0), mine);
        }
      }
      if (whole) store(query, first_slice);
    }
  }
  if (whole) return;
  // Query heads are combined only after the parts of all have been left. Otherwise the last CTA would combine
  // kMergedHeads at a time.
  if constexpr (Part::kSeveralQueries) named_barrier(1, n_threads);  // Fences cover what all warps have left.
  for (int i = warp; i < (n_columns * kSlices) >> together_log2; i += n_warps) {
    const int query = (i << together_log2) / kSlices;
    const int first_slice = (i << together_log2) % kSlices;
#pragma unroll 1
    for (int level = 0; level < ctas.n_levels(); ++level) {
      __syncwarp();
      Shared shared(args.schedule, shared_slice(query, first_slice, level));
      const bool is_last_level = level + 1 == ctas.n_levels();
      PartialResult results[Shared::kTogether];
      bool was_last = true;  // whether this CTA was the last to leave its parts
#pragma unroll 1
      for (int nth = 0; nth < together; ++nth) {
        const int slice = first_slice + nth;
        if (nth % Shared::kTogether != 0)
          results[0] = results[Shared::kTogether - 1];
        else
          was_last = shared.combine(args.schedule, shared_slice(query, slice, level), together > 1, nth == 0,
                                    results);
        if (!was_last) break;
        if (is_last_level)
          keep(query, slice, nth, results[0]);
        else
          Shared::leave(args.schedule, shared_slice(query, slice, level + 1), results[0]);
      }
      if (!was_last) break;
      if (is_last_level) store(query, first_slice);
    }
  }
}

}  // namespace kvant::cuda
