// Declares the launches of prefill attention by head size. Each head size and precision is compiled in a
// separate file. The host first chooses a kernel, then asks for the kernel's sizes, and then launches the
// kernel.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "device/cuda/common/gpu.h"
#include "device/cuda/prompt/kept_rows.h"
#include "device/cuda/prompt/prompt_args.h"
#include "device/cuda/rows/dequantize_args.h"

namespace kvant::cuda {

// Describes a launch beyond the kernels' arguments.
struct PromptLaunch {
  int tile_slots;  // slots of all sequences, for pages and rows
  Gpu gpu;
  bool is_half, sas;
  const DequantizeArgs* pages;  // Null means that there are no sealed pages.
  // True if the rows after the sealed pages come from tail pages.
  bool rows_in_tail;
  // Null means that there are no kept rows, or that the kernel does not support them.
  const KeptRows* kept;
  cudaStream_t stream;
};

// Returns the distance between tokens' rows in shared memory, in numbers. The padding puts neighbouring
// tokens into different banks.
constexpr int dequantized_stride(int head_dim) {
  return head_dim + 8;
}

// Says which block sizes and memory the kernels of a head size and precision use on a device.
struct PromptSizes {
  int block_rows;  // rows of a work item; 0 if the device has too little shared memory
  int tile_bytes;
  // Blocks that several CTAs share need this many numbers in PromptArgs::halves and in PromptArgs::claims.
  std::size_t half_numbers;
  int claims;
  int ctas;  // CTAs that run concurrently on an SM
  // If this is 0, the kernel attends to protected tokens in the tiles of their pages.
  int kept_tile_bytes = 0;
  int units = 1;  // units of a block (BlockUnits)
};
// The functions from prompt_sizes() to mma_prompt_sizes() return the sizes for 8-bit integers by warpgroups
// (sm_90a) and by warps, then for half precision by warpgroups and by warps.
template <int D>
PromptSizes prompt_sizes(const Gpu& gpu);
template <int D>
PromptSizes integer_mma_sizes(const Gpu& gpu);
template <int D>
PromptSizes half_prompt_sizes(const Gpu& gpu);
template <int D>
PromptSizes mma_prompt_sizes(const Gpu& gpu);

// The functions from launch_prompt() to launch_mma_prompt() launch the first pass and the attention kernel.
// For integers, the first pass also finds the ranges of channels.
template <int D>
cudaError_t launch_prompt(const PromptArgs& args, const PromptLaunch& launch);
template <int D>
cudaError_t launch_integer_mma(const PromptArgs& args, const PromptLaunch& launch);
template <int D>
cudaError_t launch_half_prompt(const PromptArgs& args, const PromptLaunch& launch);
template <int D>
cudaError_t launch_mma_prompt(const PromptArgs& args, const PromptLaunch& launch);

// launch_half_tiles() launches the first pass for half precision, and launch_step_tiles() launches it for
// integers by warps.
template <int D>
cudaError_t launch_half_tiles(const PromptArgs& args, const PromptLaunch& launch, int block_rows);
template <int D>
cudaError_t launch_step_tiles(const PromptArgs& args, const PromptLaunch& launch, int block_rows);

}  // namespace kvant::cuda
