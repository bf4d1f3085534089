// Decode attention of short sequences of which nothing is sealed.
#pragma once

#include <cuda_runtime.h>

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/seal/encode_args.h"
#include "kvant/kvant.h"

namespace kvant::cuda {

// Whether the kernel for short sequences serves a step: then there is no schedule. The same for all layers.
bool takes_short_kernel(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths, const Gpu& gpu);

// One layer of such a step. new_rows: each the last token of its sequence; or null.
kvant_status attend_short(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths,
                          const kvant_decode_layer& layer, const AppendArgs* new_rows, const Gpu& gpu,
                          cudaStream_t stream);

}  // namespace kvant::cuda
