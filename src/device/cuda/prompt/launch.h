// The kernels of prompt attention by head size, each compiled on its own.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "device/cuda/device/gpu.h"
#include "device/cuda/prompt/kept_rows.h"
#include "device/cuda/prompt/prompt_args.h"
#include "device/cuda/rows/dequantize_args.h"

namespace kvant::cuda {

struct PromptLaunch {
  int tile_slots;  // of all sequences, pages and rows
  Gpu gpu;
  bool is_half, sas;
  const DequantizeArgs* pages;  // or null: there are none
  bool rows_in_tail;            // with pages: rows are those of tail pages
  const KeptRows* kept;         // or null: there are none, or the kernel has none
  cudaStream_t stream;
};

// Numbers from one token's row to the next in shared memory: octets of neighbouring tokens lie in different
// banks.
constexpr int dequantized_stride(int head_dim) {
  return head_dim + 8;
}

// What the kernels of a head size and precision work in, on a device.
struct PromptSizes {
  int block_rows;  // of a work item; 0: the device has too little shared memory
  int tile_bytes;
  // Of blocks that several CTAs share: numbers in PromptArgs::halves, and in `claims`.
  std::size_t half_numbers;
  int claims;
  int ctas;                 // that run side by side on a multiprocessor
  int kept_tile_bytes = 0;  // 0: the kernel attends to protected tokens in the tiles of their pages
  int units = 1;            // of a block (BlockUnits)
};
// In 8-bit integers, by warpgroups (sm_90a) or by warps, and in half precision likewise.
template <int D>
PromptSizes prompt_sizes(const Gpu& gpu);
template <int D>
PromptSizes integer_mma_sizes(const Gpu& gpu);
template <int D>
PromptSizes half_prompt_sizes(const Gpu& gpu);
template <int D>
PromptSizes mma_prompt_sizes(const Gpu& gpu);

// The first pass (of integers channels' ranges, then tiles), and attention behind it.
template <int D>
cudaError_t launch_prompt(const PromptArgs& args, const PromptLaunch& launch);
template <int D>
cudaError_t launch_integer_mma(const PromptArgs& args, const PromptLaunch& launch);
template <int D>
cudaError_t launch_half_prompt(const PromptArgs& args, const PromptLaunch& launch);
template <int D>
cudaError_t launch_mma_prompt(const PromptArgs& args, const PromptLaunch& launch);

// The first pass of those in half precision, and of those in integers by warps.
template <int D>
cudaError_t launch_half_tiles(const PromptArgs& args, const PromptLaunch& launch, int block_rows);
template <int D>
cudaError_t launch_step_tiles(const PromptArgs& args, const PromptLaunch& launch, int block_rows);

}  // namespace kvant::cuda
