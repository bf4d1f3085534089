// Launches the first pass of prefill in half precision. One kernel makes the tiles and the plan, for kernels
// by warpgroups and by warps alike.
#pragma once

#include "device/cuda/prompt/half_tiles.cuh"
#include "device/cuda/prompt/launch.h"
#include "device/cuda/prompt/launch_overlapped.h"

namespace kvant::cuda {

template <int D, bool IsHalf, class Source>
cudaError_t launch_tiles_of(const PromptArgs& args, const Source& source, const PromptLaunch& launch,
                            int block_rows) {
  constexpr int kBytes = Source::template kSharedBytes<D>;
  // The plan takes 9 KB more.
  static_assert(kBytes <= Gpu::kLeastSharedBytes - 9 * 1024);
  auto* kernel = half_tiles_kernel<D, IsHalf, Source>;
  if (const cudaError_t error = allow_shared(kernel, kBytes); error != cudaSuccess) return error;
  const dim3 tiles(launch.tile_slots + 1, args.n_kv_heads, 2);
  kernel<<<tiles, kQuantizeThreads, kBytes, launch.stream>>>(args, source, block_rows);
  return cudaGetLastError();
}

template <int D>
cudaError_t launch_half_tiles(const PromptArgs& args, const PromptLaunch& launch, int block_rows) {
  return with_source(launch, [&]<bool IsHalf>(std::bool_constant<IsHalf>, const auto& source) {
    return launch_tiles_of<D, IsHalf>(args, source, launch, block_rows);
  });
}

}  // namespace kvant::cuda
