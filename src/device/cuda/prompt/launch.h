// The kernels of prefill attention by head size, each compiled separately.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "device/cuda/common/gpu.h"
#include "device/cuda/prompt/kept_rows.h"
#include "device/cuda/prompt/prompt_args.h"
#include "device/cuda/rows/dequantize_args.h"

namespace kvant::cuda {

struct PromptLaunch {
  int tile_slots;  // of all sequences, for pages and rows
  Gpu gpu;
  bool is_half, sas;
  const DequantizeArgs* pages;  // null: there are none
  bool rows_in_tail;            // with pages: rows come from tail pages
  const KeptRows* kept;         // null: there are none, or the kernel does not support them
  cudaStream_t stream;
};

// The distance between tokens' rows in shared memory, in numbers; octets of neighbouring tokens then lie in
// different banks.
constexpr int dequantized_stride(int head_dim) {
  return head_dim + 8;
}

// The block sizes and memory that the kernels of a head size and precision use on a device.
struct PromptSizes {
  int block_rows;  // rows of a work item; 0: the device has too little shared memory
  int tile_bytes;
  // For blocks that several CTAs share: numbers in PromptArgs::halves, and in `claims`.
  std::size_t half_numbers;
  int claims;
  int ctas;                 // that run concurrently on an SM
  int kept_tile_bytes = 0;  // 0: the kernel attends to protected tokens in the tiles of their pages
  int units = 1;            // units of a block (BlockUnits)
};
// Return the sizes in 8-bit integers, by warpgroups (sm_90a) or by warps, and likewise in half precision.
template <int D>
PromptSizes prompt_sizes(const Gpu& gpu);
template <int D>
PromptSizes integer_mma_sizes(const Gpu& gpu);
template <int D>
PromptSizes half_prompt_sizes(const Gpu& gpu);
template <int D>
PromptSizes mma_prompt_sizes(const Gpu& gpu);

// Launch the first pass (for integers the channels' ranges, then tiles) and the attention after it.
template <int D>
cudaError_t launch_prompt(const PromptArgs& args, const PromptLaunch& launch);
template <int D>
cudaError_t launch_integer_mma(const PromptArgs& args, const PromptLaunch& launch);
template <int D>
cudaError_t launch_half_prompt(const PromptArgs& args, const PromptLaunch& launch);
template <int D>
cudaError_t launch_mma_prompt(const PromptArgs& args, const PromptLaunch& launch);

// Launch the first pass for half precision, and for integers by warps.
template <int D>
cudaError_t launch_half_tiles(const PromptArgs& args, const PromptLaunch& launch, int block_rows);
template <int D>
cudaError_t launch_step_tiles(const PromptArgs& args, const PromptLaunch& launch, int block_rows);

}  // namespace kvant::cuda
