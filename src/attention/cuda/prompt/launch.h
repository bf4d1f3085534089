// The kernels of prompt attention by head size, each compiled on its own.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "attention/cuda/dequantize_args.h"
#include "attention/cuda/prompt/prompt_args.h"

namespace kvant::cuda {

struct PromptLaunch {
  int tile_slots;  // of all sequences, pages and rows
  int multiprocessors;
  bool is_half, sas;
  const DequantizeArgs* pages;  // or null: there are none
  bool rows_in_tail;            // with pages: rows are those of tail pages
  cudaStream_t stream;
};

// Numbers from one token's row to the next in shared memory: octets of neighbouring tokens lie in different
// banks.
constexpr int dequantized_stride(int head_dim) {
  return head_dim + 8;
}

// The rows of a work item, and bytes of a tile.
template <int D>
int prompt_block_rows();
template <int D>
int prompt_tile_bytes();
// Of blocks that two CTAs share: numbers in PromptArgs::halves, and in `claims`.
template <int D>
std::size_t prompt_half_numbers();
template <int D>
int prompt_claims();

// The first pass (channels' ranges, then tiles), and attention behind it.
template <int D>
cudaError_t launch_prompt(const PromptArgs& args, const PromptLaunch& launch);

}  // namespace kvant::cuda
