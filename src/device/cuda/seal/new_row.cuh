// A row of keys, values or queries as it comes from the model, brought into the basis in which it is stored:
// a warp has it, each lane neighbouring channels.
#pragma once

#include "device/cuda/seal/encode_args.h"

namespace kvant::cuda {

// This lane's channels of a row of one head, as they are: zeros behind those that the row has.
template <int D>
__device__ __forceinline__ void read_row(const AppendedRows& rows, NumberType type, std::int64_t row,
                                         int head, int lane, float (&x)[D / kLanes]) {
  constexpr int kOwn = D / kLanes;
  if (lane * kOwn < rows.channels) {
    load_channels(rows.rows, {type, rows.is_wide},
                  row * rows.row_stride + head * rows.head_stride + lane * kOwn, x);
  } else {
#pragma unroll
    for (float& own : x) own = 0;
  }
}

// of_factors: the head's KV head.
template <int D>
__device__ __forceinline__ void transform_row(const AppendedRows& rows, int of_factors, int lane,
                                              float (&x)[D / kLanes]) {
  scale_channels(rows.factors, static_cast<std::int64_t>(of_factors) * D + lane * (D / kLanes), x);
  if (rows.hadamard != 0) rotate_channels(lane, x);
}

// Both.
template <int D>
__device__ __forceinline__ void load_row(const AppendedRows& rows, NumberType type, std::int64_t row,
                                         int head, int of_factors, int lane, float (&x)[D / kLanes]) {
  read_row<D>(rows, type, row, head, lane, x);
  transform_row<D>(rows, of_factors, lane, x);
}

}  // namespace kvant::cuda
