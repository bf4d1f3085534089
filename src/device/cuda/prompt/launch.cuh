// Launches prefill attention in 8-bit integers by products of warpgroups (sm_90a), for one head size. The
// first pass finds the ranges of channels and makes tiles and the plan. The attention kernel follows.
#pragma once

#include <algorithm>

#include "device/cuda/prompt/cluster_ranges.cuh"
#include "device/cuda/prompt/code_tiles.cuh"
#include "device/cuda/prompt/launch.h"
#include "device/cuda/prompt/launch_overlapped.h"
#include "device/cuda/prompt/page_rows.cuh"
#include "device/cuda/prompt/prompt_kernel.cuh"

namespace kvant::cuda {

// launch_kept_count() counts the kept rows before each page. launch_kept_tiles() makes the tiles of kept
// rows, and must come after the ranges of channels.
inline void launch_kept_count(const PromptArgs& args, const PromptLaunch& launch) {
  if (launch.kept != nullptr)
    count_kept_kernel<kQuantizeThreads>
        <<<args.n_kv_heads, kQuantizeThreads, 0, launch.stream>>>(args, *launch.kept);
}
template <int D>
cudaError_t launch_kept_tiles(const PromptArgs& args, const PromptLaunch& launch) {
  if (launch.kept != nullptr)
    kept_tiles_kernel<D>
        <<<dim3(launch.kept->slots, args.n_kv_heads, 2), kQuantizeThreads, 0, launch.stream>>>(args,
                                                                                               *launch.kept);
  return cudaGetLastError();
}

// If true, tiles are made directly from codes if the format allows that. If false, all tiles are made from
// rows.
inline constexpr bool kTilesFromCodes = true;

// Launches the kernels that make tiles from codes. Stores in `source` the sides of pages for which these
// kernels make tiles. Returns in n_tiles how many tiles of either side must still be made from rows.
template <int D>
cudaError_t launch_code_tiles(const PromptArgs&, const OnlyRows&, const PromptLaunch& launch, int* n_tiles) {
  *n_tiles = launch.tile_slots;
  return cudaSuccess;
}
template <int D>
cudaError_t launch_code_tiles(const PromptArgs& args, PagesAndRows& source, const PromptLaunch& launch,
                              int* n_tiles) {
  *n_tiles = launch.tile_slots;
  const DequantizeArgs& pages = source.pages;
  if (!kTilesFromCodes || args.page_slots == 0 || pages.masks != nullptr) return cudaSuccess;
  // If true, the values of some heads have grids by token.
  bool of_tokens = false;
  for (int side = 0; side < 2; ++side) {
    source.from_codes[side] = true;
    for (int head = 0; head < args.n_kv_heads; ++head) {
      const PageDecoding& decoding = pages.decodings[pages.decoding_of_head[head]][side];
      const bool has_tokens = side == 1 && has_token_codes<D>(decoding);
      source.from_codes[side] &= has_tokens || has_channel_codes(decoding);
      of_tokens |= has_tokens;
    }
  }
  const int sides = (source.from_codes[0] ? 1 : 0) + (source.from_codes[1] ? 1 : 0);
  if (sides == 0) return cudaSuccess;
  source.row_slots = launch.tile_slots - args.page_slots;
  const int left = args.n_seqs + source.row_slots;
  *n_tiles = sides == 2 ? left : std::max(launch.tile_slots, left);
  const auto make = [&](auto* kernel, int first_side, int n_sides) {
    return launch_overlapped(kernel, dim3(args.page_slots, args.n_kv_heads, n_sides), D, 0, launch, args,
                             pages, first_side);
  };
  auto* by_channel = code_tiles_kernel<PromptTile<D>, D, false>;
  if (!of_tokens || !source.from_codes[1]) return make(by_channel, source.from_codes[0] ? 0 : 1, sides);
  if (source.from_codes[0]) {
    if (const cudaError_t error = make(by_channel, 0, 1); error != cudaSuccess) return error;
  }
  return make(code_tiles_kernel<PromptTile<D>, D, true>, 1, 1);
}

// A block has this many units of rows.
template <int D>
inline constexpr BlockUnits kPromptUnits{kGroupRows, PromptShape<D>::kGroups};

// Launches the kernels that find the ranges of channels and make tiles and the plan.
template <int D, bool IsHalf, class Source>
cudaError_t launch_first_pass(const PromptArgs& args, Source source, const PromptLaunch& launch) {
  constexpr int kBytes = Source::template kSharedBytes<D>;
  auto* ranges = channel_ranges_kernel<D, IsHalf, Source>;
  auto* quantize = quantize_tiles_kernel<PromptTile<D>, D, IsHalf, Source>;
  if (const cudaError_t error = allow_shared(ranges, kBytes); error != cudaSuccess) return error;
  if (const cudaError_t error = allow_shared(quantize, kBytes); error != cudaSuccess) return error;
  const dim3 samples(args.n_seqs * kSampledTiles, args.n_kv_heads, 2);
  ranges<<<samples, kQuantizeThreads, kBytes, launch.stream>>>(args, source);
  int n_tiles = 0;
  if (const cudaError_t error = launch_code_tiles<D>(args, source, launch, &n_tiles); error != cudaSuccess)
    return error;
  const dim3 tiles(n_tiles + 1, args.n_kv_heads, 2);
  // The kernel reads rows and pages while the ranges of channels are still being computed.
  return launch_overlapped(quantize, tiles, kQuantizeThreads, kBytes, launch, args, source, kPromptUnits<D>);
}

// Launches the attention kernel.
template <int D, class Weight, bool IsHalf, bool MayTurn = false, class Kept = NothingKept>
cudaError_t launch_attention(const PromptArgs& args, const PromptLaunch& launch, const Kept& kept = {}) {
  constexpr int kBytes = sizeof(PromptShared<D>) + 1024;
  auto* kernel = prompt_kernel<D, Weight, IsHalf, MayTurn, Kept>;
  if (const cudaError_t error = allow_shared(kernel, kBytes); error != cudaSuccess) return error;
  return launch_overlapped(kernel, dim3(args.n_ctas), PromptShape<D>::kThreads, kBytes, launch, args, kept);
}

// Kept rows have tiles of this many bytes (kept_tiles.cuh). With 0, protected tokens would be rounded within
// the tiles of their pages.
template <int D>
inline constexpr int kKeptTileBytes = HalfTile<D>::kBytes;

template <int D>
PromptSizes prompt_sizes(const Gpu&) {
  return {
      PromptShape<D>::kRows,
      PromptTile<D>::kBytes,
      static_cast<std::size_t>(kMostHalves) * PromptShape<D>::kGroups * HalfSums<D, kGroupThreads>::kNumbers,
      kMostHalves * PromptShape<D>::kGroups * kClaims,
      /*ctas=*/1,
      kKeptTileBytes<D>,
      PromptShape<D>::kGroups};
}

template <int D>
cudaError_t launch_prompt(const PromptArgs& args, const PromptLaunch& launch) {
  launch_kept_count(args, launch);
  cudaError_t error = with_source(launch, [&]<bool IsHalf>(std::bool_constant<IsHalf>, const auto& source) {
    return launch_first_pass<D, IsHalf>(args, source, launch);
  });
  if (error == cudaSuccess) error = launch_kept_tiles<D>(args, launch);
  if (error != cudaSuccess) return error;
  if (launch.kept != nullptr)
    return launch_attention<D, ExactWeight, false, false>(args, launch, *launch.kept);
  if (args.q_hadamard != 0 || args.out_hadamard != 0)
    return launch.sas ? launch_attention<D, SasWeight, false, true>(args, launch)
                      : launch_attention<D, ExactWeight, false, true>(args, launch);
  if (launch.is_half)
    return launch.sas ? launch_attention<D, SasWeight, true>(args, launch)
                      : launch_attention<D, ExactWeight, true>(args, launch);
  return launch.sas ? launch_attention<D, SasWeight, false>(args, launch)
                    : launch_attention<D, ExactWeight, false>(args, launch);
}

}  // namespace kvant::cuda
