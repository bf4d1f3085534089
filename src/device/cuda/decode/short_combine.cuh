// Combines the outputs of all warps of a cluster that serves a sequence and KV head
// (short_sealed_kernel.cuh). The warps of a CTA merge their outputs. The CTA then sends its part of each
// query head to the CTA that owns the query head. The owner waits only for its own query heads, so no barrier
// of the whole cluster follows the pages. docs/dev/gpu-work.md shows why no CTA ends too early.
#pragma once

#include "device/cuda/common/ptx.cuh"
#include "device/cuda/decode/leave_segment.cuh"
#include "device/cuda/decode/short_args.h"
#include "device/cuda/decode/short_parts.cuh"

namespace kvant::cuda {

// Holds the accumulators that warps leave for merging, for all query heads at once. The outputs take the
// place of the rings of pages, which no warp reads any more.
template <int D>
struct WarpOutputs {
  static constexpr int kMTiles = D / 16;
  // The padding keeps readers in different banks.
  static constexpr int kRow = 4 * 8 + 16 / kMTiles;
  // Outputs have the shape [warp][h][m][t * 8 + g]. An element has two channels, from g * D/8 + 2 * m on, of
  // head 2 * t + h.
  float2 out[kShortWarps][2][kMTiles][kRow];

  __device__ void put(const Accumulator<D>& acc, int warp, int lane) {
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h)
        out[warp][h][m][lane % 4 * 8 + lane / 4] = make_float2(acc.out[m][h], acc.out[m][h + 2]);
    }
  }
  // Returns two neighbouring channels of a query head. `channel` is even.
  __device__ float2 at(int warp, int query, int channel) const {
    return out[warp][query % 2][channel % (D / 8) / 2][query / 2 * 8 + channel / (D / 8)];
  }
};

// Says which CTA of a cluster owns which query heads. CTAs take query heads in turn.
struct HeadOwners {
  int n_ctas;
  int inverse;  // ShortSealedArgs::per_cta

  // Returns the index of a query head among those of its owner.
  __device__ int nth(int query) const { return query * inverse >> 16; }
  __device__ int owner(int query) const { return query - nth(query) * n_ctas; }
  // Returns how many of n_queries query heads a CTA owns.
  __device__ int owned(int cta, int n_queries) const {
    return cta < n_queries ? nth(n_queries - 1 - cta) + 1 : 0;
  }
};

// Receives the parts of the query heads that a CTA owns. The CTA at place `cta` of the cluster sends its part
// of the owner's nth query head into slot nth * n_ctas + cta.
template <int D>
struct PartInbox {
  // At most 8 CTAs send parts of at most 8 query heads, so a CTA gets at most this many parts: 7 CTAs send
  // parts of 2 query heads.
  static constexpr int kSlots = 14;
  static_assert(kPaddedGroup == 8 && kMaxShortCtas == 8);

  alignas(16) float out[kSlots][D];
  float2 sums[kSlots];  // maximum and sum of weights
  // The barrier counts the bytes of all parts that the CTA gets. Its only phase has one arrival, which
  // open() makes, and ends when all bytes are here. Bytes may be counted before that arrival.
  std::uint64_t barrier;

  // Prepares the inbox before any CTA of the cluster can send. One thread of the CTA calls open(), and the
  // cluster's barrier must follow before another CTA sends.
  __device__ void open(const HeadOwners& owners, int cta, int n_queries) {
    barrier_init(shared_address(&barrier), 1);
    publish_barriers();
    expect_bytes(shared_address(&barrier), owners.owned(cta, n_queries) * owners.n_ctas * (D * 4 + 8));
  }
  // Waits until all parts are here.
  __device__ void wait() const { barrier_wait_for_cluster(shared_address(&barrier), 0); }
};

// Holds the static shared memory of a CTA whose sequence has sealed pages.
template <int D>
struct ShortSealedShared : QueryRows<D> {
  __nv_bfloat16 new_rows[2][D];  // [2][D]: the new token's key and value
  float max[kShortWarps][kPaddedGroup], sum[kShortWarps][kPaddedGroup];
  PartInbox<D> inbox;
};

// Returns the sum over each group of eight lanes.
__device__ __forceinline__ float sum_over_eight(float x) {
#pragma unroll
  for (int step = 1; step < 8; step *= 2) x += __shfl_xor_sync(~0U, x, step);
  return x;
}
__device__ __forceinline__ float max_over_eight(float x) {
#pragma unroll
  for (int step = 1; step < 8; step *= 2) x = fmaxf(x, __shfl_xor_sync(~0U, x, step));
  return x;
}

// Weighs up to eight parts of a query head against each other. Each lane passes the maximum and the sum of
// part lane % 8. A lane without a part passes kNoScore and 0. The lane's weight is then 0, or all parts are
// empty.
struct PartWeights {
  float max, sum;  // of all parts
  float weight;    // factor of the outputs of part lane % 8

  __device__ __forceinline__ PartWeights(float of_max, float of_sum)
      : max(max_over_eight(of_max)), weight(exp2_fast(of_max - max)) {
    sum = sum_over_eight(weight * of_sum);
  }
  __device__ __forceinline__ float of(int part) const { return __shfl_sync(~0U, weight, part); }
};

// A warp merges a piece of a query head at a time. Each lane has N neighbouring channels of the piece, and
// sends them together.
template <int D>
struct Piece {
  static constexpr int N = D == 64 ? 2 : 4;
  static constexpr int kChannels = N * kLanes;
  static constexpr int kOfHead = D / kChannels;  // pieces of a query head

  static __device__ int first_channel(int piece, int lane) { return piece * kChannels + N * lane; }
};

// Merges a piece of a query head over the CTA's warps and sends it to the owner. The first piece takes the
// maximum and the sum of weights with it.
template <int D>
__device__ __forceinline__ void send_piece(const ShortPlace& at, const HeadOwners& owners,
                                           const WarpOutputs<D>& outputs, int query, int piece,
                                           ShortSealedShared<D>& shared) {
  static_assert(kShortWarps == 8);
  constexpr int kOwn = Piece<D>::N;
  const int w = at.lane % kShortWarps;
  const PartWeights weights(shared.max[w][query], shared.sum[w][query]);
  const int first = Piece<D>::first_channel(piece, at.lane);
  float out[kOwn] = {};
#pragma unroll
  for (int warp = 0; warp < kShortWarps; ++warp) {
    const float weight = weights.of(warp);
#pragma unroll
    for (int j = 0; j < kOwn; j += 2) {
      const float2 two = outputs.at(warp, query, first + j);
      out[j] = fmaf(weight, two.x, out[j]);
      out[j + 1] = fmaf(weight, two.y, out[j + 1]);
    }
  }
  PartInbox<D>& inbox = shared.inbox;
  const int slot = owners.nth(query) * at.n_ctas + at.cta;
  float* const to = inbox.out[slot] + first;
  const float sums[2] = {weights.max, weights.sum};
  const bool sends_sums = piece == 0 && at.lane == 0;
  if (at.n_ctas == 1) {
#pragma unroll
    for (int j = 0; j < kOwn; ++j) to[j] = out[j];
    if (sends_sums) inbox.sums[slot] = {sums[0], sums[1]};
    return;
  }
  const int owner = owners.owner(query);
  const std::uint32_t barrier = address_in_cluster(shared_address(&inbox.barrier), owner);
  send_to_cluster(address_in_cluster(shared_address(to), owner), out, barrier);
  if (sends_sums)
    send_to_cluster(address_in_cluster(shared_address(&inbox.sums[slot]), owner), sums, barrier);
}

// Combines the parts of a query head and stores the output. `nth` is the index of the query head among those
// that the CTA owns, and `query` its index among those of the cluster.
template <int D, class Args>
__device__ __forceinline__ void store_owned_head(const Args& args, const ShortPlace& at, int nth, int query,
                                                 const PartInbox<D>& inbox) {
  constexpr int kOwn = Piece<D>::N;
  const int first = nth * at.n_ctas;
  const int cta = at.lane % kMaxShortCtas;
  const float2 sums = cta < at.n_ctas ? inbox.sums[first + cta] : make_float2(kNoScore, 0);
  PartWeights weights(sums.x, sums.y);
  float x[D / kLanes] = {};  // [piece][channel of the lane]
#pragma unroll
  for (int part = 0; part < kMaxShortCtas; ++part) {
    // An absent part has weight 0. A branch would make the loads wait for each other.
    const int slot = first + (part < at.n_ctas ? part : 0);
    const float weight = weights.of(part);
#pragma unroll
    for (int piece = 0; piece < Piece<D>::kOfHead; ++piece) {
      const float* from = inbox.out[slot] + Piece<D>::first_channel(piece, at.lane);
#pragma unroll
      for (int j = 0; j < kOwn; ++j) x[piece * kOwn + j] = fmaf(weight, from[j], x[piece * kOwn + j]);
    }
  }
  const int of_head = at.first_query + query;
  const int head = at.head * args.group + of_head;
  float2 scale{1, 1};
  if (args.sink_logits != nullptr) join_sink(args.sink_logits[head], scale, weights.max, weights.sum);
  const float share = weights.sum > 0 ? scale.x / weights.sum : 0;
  if (at.lane == 0 && args.lse != nullptr)
    args.lse[static_cast<std::int64_t>(at.seq) * args.n_kv_heads * args.group + head] =
        (weights.max - kWeightBits + log2f(weights.sum)) * 0.69314718F;
#pragma unroll
  for (float& channel : x) channel *= share;
  if (args.out_hadamard != 0) rotate_channels(at.lane, x);
#pragma unroll
  for (int i = 0; i < D / kLanes; i += 2)
    store_pair(args, at.seq, at.head, of_head, Piece<D>::first_channel(i / kOwn, at.lane) + i % kOwn,
               {x[i], x[i + 1]}, D);
}

// Turns the accumulators of all warps into outputs. All threads of the cluster must call this function.
// `acc` is this warp's part, which is empty if the warp has had no work. `outputs` lies where the rings of
// pages were.
template <int D, class Args>
__device__ __forceinline__ void combine_outputs(const Args& args, const ShortPlace& at, Accumulator<D>& acc,
                                                WarpOutputs<D>& outputs, ShortSealedShared<D>& shared) {
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
  // All warps must have read their last pages, whose memory is reused. All copies have arrived, because a
  // warp has waited for each.
  __syncthreads();
  // All CTAs must have opened their inboxes.
  if (at.n_ctas > 1) cluster_wait();
  if (at.lane % 4 * 2 < at.n_queries) outputs.put(acc, at.warp, at.lane);
  __syncthreads();
  const HeadOwners owners{at.n_ctas, args.per_cta};
  constexpr int kPieces = Piece<D>::kOfHead;
#pragma unroll 1
  for (int i = at.warp; i < at.n_queries * kPieces; i += kShortWarps)
    send_piece(at, owners, outputs, i / kPieces, i % kPieces, shared);
  if (at.n_ctas == 1) __syncthreads();
  static_assert(kPaddedGroup <= kShortWarps);
  const int query = at.cta + at.n_ctas * at.warp;
  if (query >= at.n_queries) return;
  if (at.n_ctas > 1) shared.inbox.wait();
  store_owned_head(args, at, at.warp, query, shared.inbox);
}

}  // namespace kvant::cuda
