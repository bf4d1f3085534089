// The decode attention kernel. CTAs are persistent; each of a CTA's consumer warps attends on its own to
// pages of the CTA's range in turn, with a ring of pages in shared memory that the copying warp keeps filled
// (page_copier.cuh). Where a range leaves a sequence, the warps merge what they have, and either write the
// output or, if other CTAs hold parts of the sequence, leave a partial result that the last of them combines.
//
// A pair (pairs/*.cuh) supplies the formats: Pair::Key::score and Pair::Value::mix, or, with sums of its own,
// Pair::attend and Pair::finish; and tables in shared memory.
#pragma once

#include <cuda_bf16.h>

#include "attention/cuda/decode_args.h"
#include "attention/cuda/page_copier.cuh"
#include "attention/cuda/ptx.cuh"
#include "attention/cuda/query.cuh"
#include "attention/cuda/work_range.cuh"

namespace kvant::cuda {

inline constexpr float kNoScore = -1e30F;  // a maximum of nothing: finite, so that differences are
// Weights are 2^(score - maximum + kWeightBits): half-precision weights keep more of what is small.
inline constexpr float kWeightBits = 4;

// Scores, then weights, of a page: tile, then row g and heads 2t, 2t + 1, row g + 8 and heads 2t, 2t + 1.
using Scores = float[kTokenTiles][4];

// Sums of weights times values: m tile, then row g (channel g * D/8 + 2 * m_tile) and heads 2t, 2t + 1, row
// g + 8 (the next channel) and heads 2t, 2t + 1.
template <int D>
struct Accumulator {
  float out[D / 16][4];
  float max[2], sum[2];  // sum: of this lane's tokens
};

// A consumer warp's end of its ring.
struct RingReader {
  const Rings& rings;
  const unsigned char* first;  // slot
  int warp;
  int stage = 0;
  std::uint32_t parity = 0;

  __device__ const unsigned char* wait() const {
    barrier_wait(rings.full(warp, stage), parity);
    return first + stage * rings.slot_bytes;
  }
  // This lane has read what it needs; the slot is free when all have said so.
  __device__ void release() {
    barrier_arrive(rings.empty(warp, stage));
    if (++stage == rings.stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Turns the scores of some tiles into weights relative to the running maximum, which they may raise; returns
// the sums of this lane's weights of heads 2t and 2t + 1.
template <int D, int Tiles, class State>
__device__ __forceinline__ float2 soften(float (&s)[Tiles][4], Accumulator<D>& acc, State& state) {
  float top[2] = {s[0][0], s[0][1]};
#pragma unroll
  for (int tile = 0; tile < Tiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) top[i & 1] = fmaxf(top[i & 1], s[tile][i]);
  }
#pragma unroll
  for (int step = 4; step < 32; step *= 2) {
    top[0] = fmaxf(top[0], __shfl_xor_sync(~0U, top[0], step));
    top[1] = fmaxf(top[1], __shfl_xor_sync(~0U, top[1], step));
  }
  if (__any_sync(~0U, top[0] > acc.max[0] || top[1] > acc.max[1])) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float higher = fmaxf(acc.max[h], top[h]);
      const float factor = exp2_fast(acc.max[h] - higher);
      acc.max[h] = higher;
      acc.sum[h] *= factor;
      state.scale(h, factor);
#pragma unroll
      for (int tile = 0; tile < D / 16; ++tile) {
        acc.out[tile][h] *= factor;
        acc.out[tile][h + 2] *= factor;
      }
    }
  }
  const float base[2] = {acc.max[0] - kWeightBits, acc.max[1] - kWeightBits};
  float sum[2] = {0, 0};
#pragma unroll
  for (int tile = 0; tile < Tiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      s[tile][i] = exp2_fast(s[tile][i] - base[i & 1]);
      sum[i & 1] += s[tile][i];
    }
  }
  acc.sum[0] += sum[0];
  acc.sum[1] += sum[1];
  return {sum[0], sum[1]};
}

__device__ __forceinline__ bool may_be_masked(const DecodeArgs& args, int page) {
  return args.masks != nullptr || (page == 0 && args.sink > 0);
}

// The protected tokens among 32 of a sealed page: those of tiles 2 * group and 2 * group + 1.
__device__ __forceinline__ std::uint32_t mask_word(const DecodeArgs& args, const Segment& segment, int page,
                                                   int group) {
  std::uint32_t word = 0;
  if (args.masks != nullptr) {
    const uint4* mask =
        args.masks + segment.seq * args.mask_seq_stride + segment.head * args.mask_head_stride + page;
    word = reinterpret_cast<const std::uint32_t*>(mask)[group];
  }
  const int sink = page == 0 ? min(max(args.sink - 32 * group, 0), 32) : 0;
  return word | (sink == 32 ? ~0U : (1U << sink) - 1);
}

// Takes protected tokens out of the scores of tiles from 2 * first_group on.
template <int Tiles>
__device__ __forceinline__ void mask_scores(const DecodeArgs& args, const Segment& segment, int page,
                                            int first_group, int lane, float (&s)[Tiles][4]) {
#pragma unroll
  for (int tile = 0; tile < Tiles; ++tile) {
    const std::uint32_t word = mask_word(args, segment, page, first_group + tile / 2);
    const std::uint32_t bits = word >> (lane / 4 * 4 + tile % 2 * 2);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if ((bits >> (i / 2)) & 1) s[tile][i] = -INFINITY;
  }
}

template <class Pair, int D>
__device__ __forceinline__ void attend_sealed(const DecodeArgs& args, const unsigned char* tables,
                                              const Segment& segment, int page, const Query<D>& query,
                                              int lane, RingReader& ring, Accumulator<D>& acc,
                                              typename Pair::Value::State& state) {
  Scores s;
  Pair::Key::score(args, tables, ring.wait(), query, lane, s);
  ring.release();
  if (may_be_masked(args, page)) mask_scores(args, segment, page, 0, lane, s);
  soften<D>(s, acc, state);
  Pair::Value::mix(args, tables, ring.wait(), s, lane, acc.out, state);
  ring.release();
}

// Nothing but the accumulator itself depends on the maximum.
struct NoState {
  __device__ void scale(int, float) {}
};

// An unquantized page of n > 0 tokens.
template <int D>
__device__ __forceinline__ void attend_plain(int n, const Query<D>& query, int lane, RingReader& ring,
                                             Accumulator<D>& acc) {
  Scores s;
  const int n_tiles = (n + 15) / 16;
  const int g = lane / 4;
  const int t = lane % 4;
  std::uint32_t q[D / 16][2];
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    q[k][0] = bf16_from_half2(query.b[k][0]);
    q[k][1] = bf16_from_half2(query.b[k][1]);
  }
#pragma unroll
  for (int tile = 0; tile < kTokenTiles; ++tile) {
    if (tile < n_tiles) {
      const auto* pieces = reinterpret_cast<const uint4*>(ring.wait()) + lane;
      float even[4] = {};
      float odd[4] = {};
#pragma unroll
      for (int k = 0; k < D / 16; k += 2) {
        const uint4 a = pieces[k * kLanes];
        mma_bf16(even, a.x, a.y, a.z, a.w, q[k][0], q[k][1]);
        const uint4 b = pieces[(k + 1) * kLanes];
        mma_bf16(odd, b.x, b.y, b.z, b.w, q[k + 1][0], q[k + 1][1]);
      }
      ring.release();
#pragma unroll
      for (int i = 0; i < 4; ++i)
        s[tile][i] = tile * 16 + i / 2 * 8 + g < n ? (even[i] + odd[i]) * query.factor[i & 1] : -INFINITY;
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[tile][i] = -INFINITY;
    }
  }
  NoState none;
  soften<D>(s, acc, none);
#pragma unroll
  for (int tile = 0; tile < kTokenTiles; ++tile) {
    if (tile < n_tiles) {
      const std::uint32_t b0 = transpose_8x8(pack_bf16x2(s[tile][0], s[tile][1]));
      const std::uint32_t b1 = transpose_8x8(pack_bf16x2(s[tile][2], s[tile][3]));
      // What lies behind the last token may be anything, NaN among it.
      const int left = n - tile * 16;
      const std::uint32_t low = (2 * t < left ? 0xffffU : 0) | (2 * t + 1 < left ? 0xffff0000U : 0);
      const std::uint32_t high = (2 * t + 8 < left ? 0xffffU : 0) | (2 * t + 9 < left ? 0xffff0000U : 0);
      const auto* pieces = reinterpret_cast<const uint4*>(ring.wait()) + lane;
#pragma unroll
      for (int m = 0; m < D / 16; ++m) {
        const uint4 a = pieces[m * kLanes];
        mma_bf16(acc.out[m], a.x & low, a.y & low, a.z & high, a.w & high, b0, b1);
      }
      ring.release();
    }
  }
}

// Where consumer warps leave their accumulators to be merged.
template <int D>
struct MergeBuffer {
  static constexpr int kRow = D + 4;  // spreads heads over banks
  float out[kMostConsumerWarps][kMergedHeads][kRow];
  float max[kMostConsumerWarps][kPaddedGroup];
  float sum[kMostConsumerWarps][kPaddedGroup];
  int is_last;
};

__device__ __forceinline__ void store_out(const DecodeArgs& args, int seq, int head, int channel, float x) {
  const std::int64_t at = seq * args.out_seq_stride + head * args.out_head_stride + channel;
  if (args.out_f32 != 0) {
    static_cast<float*>(args.out)[at] = x;
  } else {
    static_cast<__nv_bfloat16*>(args.out)[at] = __float2bfloat16(x);
  }
}

// Adds KVLinC's correction to two channels and the sum of weights. Relative: as it is, beside exponentials
// relative to the largest score. Absolute: beside e^score, which is rescaled to where scores are below zero.
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

// Two neighbouring channels of the output of a query head, and for the first of them the logarithm of the
// softmax sum: max and sum are those of weights 2^(score - max + kWeightBits).
template <int D>
__device__ __forceinline__ void store_result(const DecodeArgs& args, int seq, int head, int channel,
                                             float2 out, float max, float sum) {
  const std::int64_t row = static_cast<std::int64_t>(seq) * args.n_kv_heads * args.group + head;
  if (args.correction_numerator != nullptr) join_correction(args, row, D, channel, out, max, sum);
  const float share = sum > 0 ? 1 / sum : 0;
  store_out(args, seq, head, channel, out.x * share);
  store_out(args, seq, head, channel + 1, out.y * share);
  if (channel == 0 && args.log_sums != nullptr)
    args.log_sums[row] = (max - kWeightBits + log2f(sum)) * 0.69314718F;
}

// Combines the partial results of a sequence and KV head, which CTAs [first, last] have left.
template <int D>
__device__ void combine_partials(const DecodeArgs& args, const Segment& segment, int first, int last,
                                 int thread, int n_threads) {
  constexpr int kTogether = 18;  // partial results whose loads are in flight
  for (int i = thread; i < args.group * (D / 2); i += n_threads) {
    const int h = i / (D / 2);
    const int channel = i % (D / 2) * 2;
    float max = kNoScore;
    float sum = 0;
    float2 out = {0, 0};
    for (int begin = first; begin <= last; begin += kTogether) {
      float2 part[kTogether];
      float2 value[kTogether];
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        // The first CTA began the sequence within its range, the others at the beginning of theirs.
        const int cta = min(begin + j, last);
        const std::int64_t row =
            static_cast<std::int64_t>(2 * cta + (cta == first ? 1 : 0)) * kPaddedGroup + h;
        part[j] = __ldcg(reinterpret_cast<const float2*>(args.schedule.partial_sums) + row);
        value[j] = __ldcg(reinterpret_cast<const float2*>(args.schedule.partial_out + row * D + channel));
      }
      float higher = max;
#pragma unroll
      for (int j = 0; j < kTogether; ++j) higher = fmaxf(higher, part[j].x);
      const float factor = exp2_fast(max - higher);
      max = higher;
      sum *= factor;
      out.x *= factor;
      out.y *= factor;
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        const float weight = begin + j <= last ? exp2_fast(part[j].x - max) : 0;
        sum += weight * part[j].y;
        out.x += weight * value[j].x;
        out.y += weight * value[j].y;
      }
    }
    store_result<D>(args, segment.seq, segment.head * args.group + h, channel, out, max, sum);
  }
}

// Merges the accumulators of all consumer warps.
template <int D>
__device__ void leave_segment(const DecodeArgs& args, const WorkRange& range, const Segment& segment,
                              Accumulator<D>& acc, MergeBuffer<D>& buffer, int thread, int n_threads) {
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
  if (g == 0) {
    for (int h = 0; h < 2; ++h) {
      buffer.max[warp][2 * t + h] = acc.max[h];
      buffer.sum[warp][2 * t + h] = acc.sum[h];
    }
  }
  const bool whole = segment.first == 0 && segment.last == segment.n_units;
  const std::int64_t slot =
      static_cast<std::int64_t>(2 * blockIdx.x + (segment.first == 0 ? 1 : 0)) * kPaddedGroup;
  for (int first = 0; first < args.group; first += kMergedHeads) {
    if (t / 2 == first / kMergedHeads) {
#pragma unroll
      for (int m = 0; m < D / 16; ++m) {
        for (int h = 0; h < 2; ++h) {
          *reinterpret_cast<float2*>(&buffer.out[warp][2 * (t % 2) + h][g * (D / 8) + 2 * m]) =
              make_float2(acc.out[m][h], acc.out[m][h + 2]);
        }
      }
    }
    named_barrier(1, n_threads);
    const int n_heads = min(args.group - first, kMergedHeads);
    for (int i = thread; i < n_heads * (D / 2); i += n_threads) {
      const int h = i / (D / 2);
      const int channel = i % (D / 2) * 2;
      float max = kNoScore;
#pragma unroll
      for (int w = 0; w < kMostConsumerWarps; ++w)
        if (w < n_warps) max = fmaxf(max, buffer.max[w][first + h]);
      float sum = 0;
      float2 out = {0, 0};
#pragma unroll
      for (int w = 0; w < kMostConsumerWarps; ++w) {
        if (w >= n_warps) continue;
        const float weight = exp2_fast(buffer.max[w][first + h] - max);
        const float2 part = *reinterpret_cast<const float2*>(&buffer.out[w][h][channel]);
        sum += weight * buffer.sum[w][first + h];
        out.x += weight * part.x;
        out.y += weight * part.y;
      }
      if (whole) {
        store_result<D>(args, segment.seq, segment.head * args.group + first + h, channel, out, max, sum);
      } else {
        *reinterpret_cast<float2*>(args.schedule.partial_out + (slot + first + h) * D + channel) = out;
        if (channel == 0)
          *reinterpret_cast<float2*>(args.schedule.partial_sums + (slot + first + h) * 2) =
              make_float2(max, sum);
      }
    }
    named_barrier(1, n_threads);
  }
  if (whole) return;
  const int first_cta = range.first_cta(segment);
  const int last_cta = range.last_cta(segment);
  if (thread == 0) {
    // The barrier above orders the other threads' stores before this fence.
    __threadfence();
    std::int32_t* arrivals = args.schedule.arrivals + segment.head * args.n_seqs + segment.seq;
    buffer.is_last = atomicAdd(arrivals, 1) == last_cta - first_cta;
    if (buffer.is_last) *arrivals = 0;
    __threadfence();
  }
  named_barrier(1, n_threads);
  if (buffer.is_last == 0) return;
  combine_partials<D>(args, segment, first_cta, last_cta, thread, n_threads);
}

template <class Pair, int D>
__device__ void consume(const DecodeArgs& args, unsigned char* shared, const Rings& rings) {
  const int warp = threadIdx.x / kLanes;
  const int lane = threadIdx.x % kLanes;
  auto& buffer = *reinterpret_cast<MergeBuffer<D>*>(shared + args.merge_at);
  RingReader ring{rings, shared + args.ring_at + warp * rings.stages * rings.slot_bytes, warp};
  const int n_threads = rings.n_warps * kLanes;
  WorkRange range(args);
  Segment segment;
  [[maybe_unused]] int tables_of = -1;
  while (range.next(segment)) {
    if constexpr (Pair::kTablesPerHead) {
      if (segment.head != tables_of) {
        named_barrier(1, n_threads);
        Pair::build_tables(args, shared, segment.head, threadIdx.x, n_threads);
        named_barrier(1, n_threads);
        tables_of = segment.head;
      }
    }
    const Query<D> query = load_query<D>(args, segment.seq, segment.head, lane);
    Accumulator<D> acc = {};
    acc.max[0] = acc.max[1] = kNoScore;
    int unit = segment.first_of(warp, rings.n_warps);
    if constexpr (Pair::kSealed) {
      const int end = min(segment.last, segment.n_sealed);
      if constexpr (requires { &Pair::attend; }) {
        typename Pair::State state(args, segment, lane);
        for (; unit < end; unit += rings.n_warps)
          Pair::attend(args, shared, segment, unit, query, lane, ring, state);
        Pair::finish(state, lane, acc);
      } else {
        typename Pair::Value::State state;
        for (; unit < end; unit += rings.n_warps)
          attend_sealed<Pair, D>(args, shared, segment, unit, query, lane, ring, acc, state);
        Pair::Value::finish(args, acc.out, state);
      }
    }
    for (; unit < segment.last; unit += rings.n_warps) {
      const int n = plain_tokens(args, segment, unit);
      if (n > 0) attend_plain<D>(n, query, lane, ring, acc);
    }
    leave_segment<D>(args, range, segment, acc, buffer, threadIdx.x, n_threads);
  }
}

template <class Pair, int D>
__global__ void __launch_bounds__(kMostThreads, 1) decode_kernel(const __grid_constant__ DecodeArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const Rings rings(args, shared);
  if (threadIdx.x == 0) rings.init();
  if constexpr (!Pair::kTablesPerHead) Pair::build_tables(args, shared, 0, threadIdx.x, blockDim.x);
  __syncthreads();
  const int warp = threadIdx.x / kLanes;
  if (warp < rings.n_warps) {
    // In this order: what precedes a kernel's predecessor is then over before the kernel begins. So a launch
    // that follows another on other heads need not wait for it before its own end.
    if (args.follows == 0) wait_for_predecessors();
    admit_successors();
    consume<Pair, D>(args, shared, rings);
    if (args.follows != 0) wait_for_predecessors();
    return;
  }
  const int of_warp = threadIdx.x % kLanes;
  if (of_warp >= rings.n_warps) return;
  if (args.settled == 0 && args.follows == 0) wait_for_predecessors();
  PageCopier<D> copier(args, rings, of_warp);
  while (copier.live()) copier.poll();
}

}  // namespace kvant::cuda
