// Launches the decode kernels for short sequences, which need no schedule and start faster than the general
// kernel. Callers first call takes_short_kernel().
#pragma once

#include <cuda_runtime.h>

#include "device/cuda/common/gpu.h"
#include "device/cuda/decode/decode_registry.h"
#include "kvant/kvant.h"

namespace kvant::cuda {

struct AppendArgs;       // defined in seal/encode_args.h
struct ShortSealedArgs;  // defined in short_args.h

// Returns whether a kernel for short sequences serves a layer. `share_pages` says whether several warps of
// that kernel share each page, for all formats of the layer. If the result is true without `share_pages`, it
// is true for all formats, so the step needs no schedule.
bool takes_short_kernel(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths, const Gpu& gpu,
                        bool share_pages);

// Attends in one layer of a short step without sealed pages. `new_rows` has the last token of each sequence.
// `new_rows` is null if the tail already holds all tokens.
kvant_status attend_short(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths,
                          const kvant_decode_layer& layer, const AppendArgs* new_rows, const Gpu& gpu,
                          cudaStream_t stream);

// Returns whether a step of the short kernel with sealed pages should have two clusters for each sequence and
// KV head, each for half of the query heads. All clusters then run at once, but may be smaller.
bool halves_are_faster(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths, const Gpu& gpu);

// Attends in one launch of a short step with sealed pages, for the heads and queries in `args`. Fills in all
// other members of `args`.
cudaError_t attend_short_sealed(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths,
                                const kvant_decode_layer& layer, const AppendArgs* new_rows,
                                const DecodeKernel& kernel, const Gpu& gpu, ShortSealedArgs& args,
                                cudaStream_t stream);

// Returns whether pages of the kernel's formats fit into the shared memory of attend_short_sealed()'s launch.
bool fits_short(const DecodeKernel& kernel, const Gpu& gpu);

}  // namespace kvant::cuda
