#pragma once

#include "attention/cuda/prompt/half_kernel.cuh"
#include "attention/cuda/prompt/launch.h"
#include "attention/cuda/prompt/launch_overlapped.h"

namespace kvant::cuda {

template <int D>
PromptSizes half_prompt_sizes() {
  return {
      HalfShape<D>::kRows, HalfTile<D>::kBytes,
      static_cast<std::size_t>(kMostHalves) * HalfShape<D>::kGroups * HalfSums<D, kGroupThreads>::kNumbers,
      kMostHalves * HalfShape<D>::kGroups * 2};
}

template <int D, bool IsHalf, class Source>
cudaError_t launch_half_tiles(const PromptArgs& args, const Source& source, const PromptLaunch& launch) {
  constexpr int kBytes = Source::template kSharedBytes<D>;
  auto* kernel = half_tiles_kernel<D, IsHalf, Source>;
  if (const cudaError_t error = allow_shared(kernel, kBytes); error != cudaSuccess) return error;
  const dim3 tiles(launch.tile_slots + 1, args.n_kv_heads, 2);
  kernel<<<tiles, kQuantizeThreads, kBytes, launch.stream>>>(args, source, HalfShape<D>::kRows);
  return cudaGetLastError();
}

template <int D>
cudaError_t launch_half_prompt(const PromptArgs& args, const PromptLaunch& launch) {
  cudaError_t error;
  if (launch.pages != nullptr) {
    error =
        launch_half_tiles<D, false>(args, PagesAndRows{*launch.pages, launch.rows_in_tail ? 1 : 0}, launch);
  } else {
    error = launch.is_half ? launch_half_tiles<D, true>(args, OnlyRows{}, launch)
                           : launch_half_tiles<D, false>(args, OnlyRows{}, launch);
  }
  if (error != cudaSuccess) return error;
  constexpr int kBytes = sizeof(HalfShared<D>) + 1024;
  auto* kernel = half_prompt_kernel<D>;
  if (error = allow_shared(kernel, kBytes); error != cudaSuccess) return error;
  return launch_overlapped(kernel, dim3(launch.multiprocessors), HalfShape<D>::kThreads, kBytes,
                           launch.stream, args);
}

}  // namespace kvant::cuda
