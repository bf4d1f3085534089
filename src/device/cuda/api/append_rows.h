// Appends rows as one of several parts of a call.
#pragma once

#include <cuda_runtime.h>

#include "device/cuda/common/gpu.h"
#include "device/cuda/common/refusal.h"
#include "device/cuda/seal/encode_args.h"
#include "kvant/kvant.h"

namespace kvant::cuda {

// Returns what is wrong with rows that go to the ends of sequences (kvant_decode_layer.new_rows).
Reason fault_of_last(const kvant_new_rows& rows, const kvant_decode_shape& shape,
                     const kvant_decode_lengths& lengths, const kvant_decode_layer& layer);

// Returns arguments for valid rows. `lengths` are the lengths of the sequences whose last tokens the rows
// are. Null means that the rows name their places.
AppendArgs append_args(const kvant_decode_shape& shape, const kvant_decode_layer& layer,
                       const kvant_new_rows& rows, const kvant_decode_lengths* lengths);

// Launches the kernel that appends the rows.
kvant_status append(const AppendArgs& args, int head_dim, const Gpu& gpu, cudaStream_t stream);

}  // namespace kvant::cuda
