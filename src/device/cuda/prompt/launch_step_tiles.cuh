// Launches the first pass of prefill in integers by products of warps. The kernels of this pass find the
// ranges of channels, and make the tiles and the plan.
#pragma once

#include "device/cuda/prompt/launch.h"
#include "device/cuda/prompt/launch_overlapped.h"
#include "device/cuda/prompt/memory_ranges.cuh"
#include "device/cuda/prompt/page_rows.cuh"
#include "device/cuda/prompt/quantize_tiles.cuh"

namespace kvant::cuda {

template <int D, bool IsHalf, class Source>
cudaError_t launch_step_tiles_of(const PromptArgs& args, const Source& source, const PromptLaunch& launch,
                                 int block_rows) {
  constexpr int kBytes = Source::template kSharedBytes<D>;
  // The plan takes 9 KB more, and samples take SampleScratch.
  static_assert(kBytes + std::max<std::size_t>(9 * 1024, sizeof(SampleScratch<D>)) <= Gpu::kLeastSharedBytes);
  auto* sample = sample_channels_kernel<D, IsHalf, Source>;
  auto* quantize = quantize_tiles_kernel<StepTile<D>, D, IsHalf, Source>;
  if (const cudaError_t error = allow_shared(sample, kBytes); error != cudaSuccess) return error;
  if (const cudaError_t error = allow_shared(quantize, kBytes); error != cudaSuccess) return error;
  const dim3 samples(args.n_seqs * kSampledTiles, args.n_kv_heads, 2);
  sample<<<samples, kQuantizeThreads, kBytes, launch.stream>>>(args, source);
  const dim3 heads(args.n_seqs, args.n_kv_heads, 2);
  join_samples_kernel<D><<<heads, kQuantizeThreads, 0, launch.stream>>>(args);
  const dim3 tiles(launch.tile_slots + 1, args.n_kv_heads, 2);
  quantize<<<tiles, kQuantizeThreads, kBytes, launch.stream>>>(args, source, BlockUnits{block_rows, 1});
  return cudaGetLastError();
}

template <int D>
cudaError_t launch_step_tiles(const PromptArgs& args, const PromptLaunch& launch, int block_rows) {
  return with_source(launch, [&]<bool IsHalf>(std::bool_constant<IsHalf>, const auto& source) {
    return launch_step_tiles_of<D, IsHalf>(args, source, launch, block_rows);
  });
}

}  // namespace kvant::cuda
