#pragma once

#include "attention/cuda/prompt/launch.h"
#include "attention/cuda/prompt/prompt_kernel.cuh"

namespace kvant::cuda {

template <int D, class Weight, bool IsHalf>
cudaError_t launch_prompt_kernels(const PromptArgs& args, const PromptLaunch& launch) {
  using Shape = PromptShape<D>;
  const dim3 samples(args.n_seqs * kSampleCtas, args.n_kv_heads, 2);
  channel_ranges_kernel<D, IsHalf><<<samples, kQuantizeThreads, 0, launch.stream>>>(args);
  const dim3 tiles(launch.tile_slots + 1, args.n_kv_heads, 2);
  quantize_tiles_kernel<D, IsHalf><<<tiles, kQuantizeThreads, 0, launch.stream>>>(args, Shape::kRows);
  auto* kernel = prompt_kernel<D, Weight, IsHalf>;
  constexpr int kBytes = sizeof(PromptShared<D>) + 1024;
  if (const cudaError_t error =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
      error != cudaSuccess)
    return error;
  kernel<<<launch.multiprocessors, Shape::kThreads, kBytes, launch.stream>>>(args);
  return cudaGetLastError();
}

template <int D>
int prompt_block_rows() {
  return PromptShape<D>::kRows;
}

template <int D>
int prompt_tile_bytes() {
  return PromptTile<D>::kBytes;
}

template <int D>
cudaError_t launch_prompt(const PromptArgs& args, const PromptLaunch& launch) {
  if (launch.is_half)
    return launch.sas ? launch_prompt_kernels<D, SasWeight, true>(args, launch)
                      : launch_prompt_kernels<D, ExactWeight, true>(args, launch);
  return launch.sas ? launch_prompt_kernels<D, SasWeight, false>(args, launch)
                    : launch_prompt_kernels<D, ExactWeight, false>(args, launch);
}

}  // namespace kvant::cuda
