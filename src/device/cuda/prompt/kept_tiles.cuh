// Makes the tiles of kept rows (kept_rows.h). One kernel counts the kept rows before each page. A second
// kernel reads the protected pages and makes half-precision tiles, which have the centres and scales of the
// INT8 tiles.
#pragma once

#include "device/cuda/prompt/find_tile.cuh"
#include "device/cuda/prompt/half_tiles.cuh"
#include "device/cuda/prompt/kept_rows.h"
#include "device/cuda/rows/dequantize_kernel.cuh"

namespace kvant::cuda {

// Returns a mask of a page's protected tokens, including the sink's.
__device__ __forceinline__ uint4 kept_mask(const KeptRows& kept, int seq, int head, int page) {
  uint4 mask = make_uint4(0, 0, 0, 0);
  if (kept.masks != nullptr)
    mask = __ldg(kept.masks + seq * kept.mask_seq_stride + head * kept.mask_head_stride + page);
  if (page > 0) return mask;
  const auto of_sink = [&](int word) {
    const int n = min(max(kept.sink - 32 * word, 0), 32);
    return n == 32 ? ~0U : (1U << n) - 1;
  };
  return make_uint4(mask.x | of_sink(0), mask.y | of_sink(1), mask.z | of_sink(2), mask.w | of_sink(3));
}

// Returns the start of a sequence's numbers in KeptRows::before.
__device__ __forceinline__ const std::int32_t* kept_before(const PromptArgs& args, const KeptRows& kept,
                                                           int seq, int head) {
  return kept.before + static_cast<std::int64_t>(head) * kept.n_before + args.sealed_begins[seq] + seq;
}

// Counts the kept rows. One CTA counts for one head, and the grid is [KV heads].
template <int Threads>
__global__ void __launch_bounds__(Threads)
    count_kept_kernel(const __grid_constant__ PromptArgs args, const __grid_constant__ KeptRows kept) {
  __shared__ int of_warps[Threads / 32];
  const int head = static_cast<int>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int n = args.sealed_begins[args.n_seqs] + args.n_seqs;
  int before = 0;
  for (int first = 0; first < n; first += Threads) {
    const int place = first + thread;
    int count = 0;
    if (place < n) {
      const int seq = sequence_of_slot(args, place, [&](int i) { return args.sealed_begins[i] + i; });
      const int page = place - args.sealed_begins[seq] - seq;
      if (page < args.sealed_begins[seq + 1] - args.sealed_begins[seq]) {
        const uint4 mask = kept_mask(kept, seq, head, page);
        count = __popc(mask.x) + __popc(mask.y) + __popc(mask.z) + __popc(mask.w);
      }
    }
    int sum = count;  // the sum over the warp's pages up to this page
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0U, sum, step);
      if (lane >= step) sum += other;
    }
    if (lane == 31) of_warps[warp] = sum;
    __syncthreads();
    int total = 0;
    for (int i = 0; i < Threads / 32; ++i) {
      if (i < warp) sum += of_warps[i];
      total += of_warps[i];
    }
    if (place < n)
      kept.before[static_cast<std::int64_t>(head) * kept.n_before + place] = before + sum - count;
    before += total;
    __syncthreads();
  }
}

// Returns eight channels of a kept row, minus the channels' centres and divided by their scales.
template <PageSide Side, int D>
__device__ __forceinline__ uint4 kept_octet(const unsigned char* page, int row, int octet,
                                            const float (&centre)[8], const float (&inverse)[8]) {
  float x[8];
  unpack_octet<false>(plain_octet<Side, D>(page, row, octet), x);
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = (x[i] - centre[i]) * inverse[i];
  return half_octet_of(x);
}

// Makes the tile of a slot. The grid is [sides][KV heads][slots].
template <int D>
__global__ void __launch_bounds__(kQuantizeThreads)
    kept_tiles_kernel(const __grid_constant__ PromptArgs args, const __grid_constant__ KeptRows kept) {
  constexpr int kOctets = D / 8;
  constexpr int kTogether = kQuantizeThreads / kOctets;
  const int slot = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  const bool is_value = blockIdx.z != 0;
  const auto begin = [&](int i) {
    return static_cast<int>(first_tile(*kept_before(args, kept, i, head), i));
  };
  const int seq = sequence_of_slot(args, slot, begin);
  const std::int32_t* before = kept_before(args, kept, seq, head);
  const int tile = slot - begin(seq);
  const int n_rows =
      before[args.sealed_begins[seq + 1] - args.sealed_begins[seq]] - before[0] - tile * kTileTokens;
  if (n_rows <= 0) return;
  const unsigned char* page = kept.protected_pages.find(seq, head, is_value ? 1 : 0, tile);
  unsigned char* to =
      kept.tiles + (static_cast<std::int64_t>(head) * kept.slots + slot) * HalfTile<D>::kBytes;
  const auto thread = static_cast<int>(threadIdx.x);
  const int octet = thread % kOctets, group = thread / kOctets;
  const float* channels =
      args.channels + (static_cast<std::int64_t>(seq) * args.n_kv_heads + head) * 3 * D + octet * 8;
  float centre[8], inverse[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    centre[i] = channels[(is_value ? D : 0) + i];
    inverse[i] = is_value ? 1 / channels[2 * D + i] : 1;
  }
  if (!is_value) {
    for (int row = group; row < kTileTokens; row += kTogether)
      *reinterpret_cast<uint4*>(to + half_place<kTileTokens>(row, octet * 8)) =
          row < n_rows ? kept_octet<PageSide::key, D>(page, row, octet, centre, inverse)
                       : make_uint4(0, 0, 0, 0);
    return;
  }
  // A thread processes four rows together, which fill a word of each channel.
  for (int row = 4 * group; row < kTileTokens; row += 4 * kTogether) {
    uint4 four[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      four[i] = row + i < n_rows ? kept_octet<PageSide::value, D>(page, row + i, octet, centre, inverse)
                                 : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int channel = 0; channel < 8; ++channel)
      *reinterpret_cast<uint2*>(to + HalfTile<D>::kSideBytes + half_place<D>(octet * 8 + channel, row)) =
          make_uint2(number_of(four[0], channel) | number_of(four[1], channel) << 16,
                     number_of(four[2], channel) | number_of(four[3], channel) << 16);
  }
}

}  // namespace kvant::cuda
