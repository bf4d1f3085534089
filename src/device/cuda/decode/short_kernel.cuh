// Computes decode attention of short sequences without sealed pages. A CTA or a cluster of CTAs serves each
// sequence and KV head, and its warps take tiles of 16 tokens in turn. The kernel also rounds and stores the
// rows of a new token, after a rotation if the caller asks for one. Warps attend to the new token in shared
// memory.
//
// In a model, weights evict all other data from the caches between two layers. The time therefore depends on
// the size of the kernel's code, and on the number of successive waits for memory. The general kernel
// (decode_kernel.cuh) is ten times as large, and needs a schedule and barriers before reading a page.
#pragma once

#include "device/cuda/decode/short_parts.cuh"

namespace kvant::cuda {

// The grid is [sequences * passes of kPaddedGroup query heads][KV heads][CTAs of a cluster].
template <int D>
__global__ void __launch_bounds__(kShortWarps* kLanes, 1)
    short_kernel(const __grid_constant__ ShortArgs args) {
  __shared__ __align__(16) ShortShared<D> shared;
  wait_for_predecessors();
  admit_successors();
  static_assert(kMaxGroup <= 2 * kPaddedGroup);
  const int two_passes = args.group > kPaddedGroup ? 1 : 0;
  ShortPlace at;
  at.cta = static_cast<int>(blockIdx.x);
  at.n_ctas = static_cast<int>(gridDim.x);
  at.head = static_cast<int>(blockIdx.y);
  at.seq = static_cast<int>(blockIdx.z) >> two_passes;
  at.first_query = (static_cast<int>(blockIdx.z) & two_passes) * kPaddedGroup;
  at.n_queries = min(args.group - at.first_query, kPaddedGroup);
  at.warp = static_cast<int>(threadIdx.x) / kLanes;
  at.lane = static_cast<int>(threadIdx.x) % kLanes;
  const int first_tile = at.cta * kShortWarps;
  // Page ids are loaded before the kernel knows whether the warp has a tile, so both loads overlap.
  int2 ids{};
  if (first_tile / kTokenTiles < args.table_pages)
    ids = page_ids(args.tail, at.seq, at.head, (first_tile + at.warp) / kTokenTiles);
  const int n_tokens = args.tail_tokens[at.seq];
  if (n_tokens == 0) return;
  const int hidden = args.first_tokens == nullptr ? 0 : args.first_tokens[at.seq];
  const int n_new = args.sides[0].rows == nullptr ? 0 : 1;
  const int n_stored = n_tokens - n_new;  // tokens stored before this step
  const int n_stored_tiles = (n_stored + kTileTokens - 1) / kTileTokens;
  const int n_tiles = n_stored_tiles + n_new;
  const bool has_new = n_new != 0 && n_stored_tiles / kShortWarps % at.n_ctas == at.cta;
  // A tile's values are loaded before its scores are known if registers suffice.
  constexpr bool kValuesEarly = D <= 128;
  uint4 keys[D / 16], values[D / 16];
  if (first_tile + at.warp < n_stored_tiles) {
    load_tile(args.tail, ids.x, at.head, 0, first_tile + at.warp, at.lane, keys);
    if (kValuesEarly) load_tile(args.tail, ids.y, at.head, 1, first_tile + at.warp, at.lane, values);
  }
  take_rows<D>(args, at, has_new ? n_stored : -1, shared, [](int, const auto&) {});
  __syncthreads();

  Accumulator<D> acc = {};
  acc.max[0] = acc.max[1] = kNoScore;
  if (first_tile + at.warp < n_tiles) {
    float x[D / 4];
    shared.read_query(at.lane / 4, at.n_queries, at.lane % 4, x);
    const Query<D> query = pack_query<D>(x, args.softmax_scale_log2, at.lane);
#pragma unroll 1
    for (int i = first_tile + at.warp; i < n_tiles; i += at.n_ctas * kShortWarps) {
      const bool is_new = i == n_stored_tiles;
      if (is_new) {
        take_key(shared.new_rows[0], at.lane, keys);
      } else if (i != first_tile + at.warp) {
        ids = page_ids(args.tail, at.seq, at.head, i / kTokenTiles);
        load_tile(args.tail, ids.x, at.head, 0, i, at.lane, keys);
        if (kValuesEarly) load_tile(args.tail, ids.y, at.head, 1, i, at.lane, values);
      }
      const int n = is_new ? 1 : n_stored - i * kTileTokens;
      float s[1][4];
      score_tile(
          query, [&](int k) { return keys[k]; }, s);
      weigh_tile<ShortPair>(args, SeenTokens{is_new ? 0 : hidden - i * kTileTokens, n}, at.lane, s, acc);
      if (is_new) {
        take_value(shared.new_rows[1], at.lane, values);
      } else if (!kValuesEarly) {
        load_tile(args.tail, ids.y, at.head, 1, i, at.lane, values);
      }
      mix_tile(
          s, n, at.lane, [&](int m) { return values[m]; }, acc);
    }
  }
  // Only this many warps of the CTA have had tiles.
  const int n_warps = max(0, min(n_tiles - first_tile, kShortWarps));
  leave_outputs(args, at, (1U << n_warps) - 1, acc, shared);
}

}  // namespace kvant::cuda
