// The kernels of prompt attention by head size, each compiled on its own.
#pragma once

#include <cuda_runtime.h>

#include "attention/cuda/prompt/prompt_args.h"

namespace kvant::cuda {

struct PromptLaunch {
  int tile_slots;  // of all sequences
  int multiprocessors;
  bool is_half, sas;
  cudaStream_t stream;
};

// The rows of a work item, and bytes of a tile.
template <int D>
int prompt_block_rows();
template <int D>
int prompt_tile_bytes();

// The first pass (channels' ranges, then tiles), and attention behind it.
template <int D>
cudaError_t launch_prompt(const PromptArgs& args, const PromptLaunch& launch);

}  // namespace kvant::cuda
