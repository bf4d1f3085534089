// Decode attention of short sequences.
#pragma once

#include <cuda_runtime.h>

#include "device/cuda/common/gpu.h"
#include "device/cuda/decode/decode_registry.h"
#include "kvant/kvant.h"

namespace kvant::cuda {

struct AppendArgs;       // seal/encode_args.h
struct ShortSealedArgs;  // short_args.h

// Whether a kernel for short sequences serves a step, which then needs no schedule. The answer is the same
// for all layers, whatever their formats.
bool takes_short_kernel(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths, const Gpu& gpu);

// Attends in one layer of such a step if nothing is sealed. new_rows: the last token of each sequence, or
// null.
kvant_status attend_short(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths,
                          const kvant_decode_layer& layer, const AppendArgs* new_rows, const Gpu& gpu,
                          cudaStream_t stream);

// Attends in one launch if some pages are sealed, for the heads and queries in args. It fills in the
// remaining arguments.
cudaError_t attend_short_sealed(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths,
                                const kvant_decode_layer& layer, const AppendArgs* new_rows,
                                const DecodeKernel& kernel, const Gpu& gpu, ShortSealedArgs& args,
                                cudaStream_t stream);

// Whether the pages of a kernel's formats fit in the shared memory of that launch.
bool fits_short(const DecodeKernel& kernel, const Gpu& gpu);

}  // namespace kvant::cuda
