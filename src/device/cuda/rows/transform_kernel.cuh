// Transforms rows of queries into the basis of transformed keys, or rows of outputs back from the basis of
// transformed values. A warp multiplies each row by factors, by the Hadamard matrix, and by other factors.
#pragma once

#include "device/cuda/common/arguments.h"
#include "device/cuda/common/ptx.cuh"
#include "device/cuda/page/row_channels.cuh"

namespace kvant::cuda {

// Locates rows. Head h of row i lies at i * row_stride + h * head_stride.
template <class Memory>
struct TransformRows {
  Memory* rows;
  std::int64_t row_stride, head_stride;
  // Rows have this many channels, a multiple of 8. The other channels of a head are read as zeros and not
  // written.
  int channels;
  RowType type;
};

struct TransformArgs {
  std::int64_t n_rows;
  int n_heads;
  TransformRows<void> to;
  TransformRows<const void> from;
  const float *factors, *factors_after;
  int heads_of_factors;
  int hadamard;
};

inline constexpr int kTransformThreads = 256;

// Transforms rows of heads. Each warp transforms one row of one head.
template <int D>
__global__ void __launch_bounds__(kTransformThreads)
    transform_kernel(const __grid_constant__ TransformArgs args) {
  wait_for_predecessors();
  admit_successors();
  constexpr int kOwn = D / kLanes;  // neighbouring channels of a lane
  const std::int64_t i =
      static_cast<std::int64_t>(blockIdx.x) * (kTransformThreads / kLanes) + threadIdx.x / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  if (i >= args.n_rows * args.n_heads) return;
  const std::int64_t row = i / args.n_heads;
  const std::int64_t head = i % args.n_heads;
  const std::int64_t first_factor = head / args.heads_of_factors * D + lane * kOwn;
  const auto first_channel = [&](const auto& rows) {
    return row * rows.row_stride + head * rows.head_stride + lane * kOwn;
  };
  float x[kOwn];
  if (lane * kOwn < args.from.channels) {
    load_channels(args.from.rows, args.from.type, first_channel(args.from), x);
  } else {
#pragma unroll
    for (float& own : x) own = 0;
  }
  scale_channels(args.factors, first_factor, x);
  if (args.hadamard != 0) rotate_channels(lane, x);
  scale_channels(args.factors_after, first_factor, x);
  if (lane * kOwn < args.to.channels) store_channels(args.to.rows, args.to.type, first_channel(args.to), x);
}

}  // namespace kvant::cuda
