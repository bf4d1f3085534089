// Loads a row of keys, values or queries from the model and transforms the row into the basis in which it is
// stored. A warp loads a row, and each lane has neighbouring channels of it.
#pragma once

#include "device/cuda/seal/encode_args.h"

namespace kvant::cuda {

// Reads this lane's channels of a row of one head unchanged. Channels beyond the row's channels become zeros.
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

// Multiplies the channels by the factors of KV head `of_factors`. If rows.hadamard is not 0, also rotates the
// row.
template <int D>
__device__ __forceinline__ void transform_row(const AppendedRows& rows, int of_factors, int lane,
                                              float (&x)[D / kLanes]) {
  scale_channels(rows.factors, static_cast<std::int64_t>(of_factors) * D + lane * (D / kLanes), x);
  if (rows.hadamard != 0) rotate_channels(lane, x);
}

// Reads a row with read_row() and transforms it with transform_row().
template <int D>
__device__ __forceinline__ void load_row(const AppendedRows& rows, NumberType type, std::int64_t row,
                                         int head, int of_factors, int lane, float (&x)[D / kLanes]) {
  read_row<D>(rows, type, row, head, lane, x);
  transform_row<D>(rows, of_factors, lane, x);
}

}  // namespace kvant::cuda
