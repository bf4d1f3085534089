// Launches prefill attention in half precision by products of warpgroups (Hopper), for one head size. The
// first pass makes half-precision tiles and the plan.
#pragma once

#include "device/cuda/prompt/half_kernel.cuh"
#include "device/cuda/prompt/launch.h"
#include "device/cuda/prompt/launch_overlapped.h"

namespace kvant::cuda {

template <int D>
PromptSizes half_prompt_sizes(const Gpu&) {
  return {
      HalfShape<D>::kRows, HalfTile<D>::kBytes,
      static_cast<std::size_t>(kMostHalves) * HalfShape<D>::kGroups * HalfSums<D, kGroupThreads>::kNumbers,
      kMostHalves * HalfShape<D>::kGroups * 2, /*ctas=*/1};
}

template <int D>
cudaError_t launch_half_prompt(const PromptArgs& args, const PromptLaunch& launch) {
  if (const cudaError_t error = launch_half_tiles<D>(args, launch, HalfShape<D>::kRows); error != cudaSuccess)
    return error;
  constexpr int kBytes = sizeof(HalfShared<D>) + 1024;
  auto* kernel = launch.sas ? half_prompt_kernel<D, SasHalfWeight> : half_prompt_kernel<D, ExactHalfWeight>;
  if (const cudaError_t error = allow_shared(kernel, kBytes); error != cudaSuccess) return error;
  return launch_overlapped(kernel, dim3(args.n_ctas), HalfShape<D>::kThreads, kBytes, launch, args);
}

}  // namespace kvant::cuda
