// Writes a step's new keys and values into tail pages, and brings its queries into the keys' basis. A warp
// does one row of one head: of the keys, the values or the queries.
#pragma once

#include <cuda_bf16.h>

#include "attention/cuda/encode_args.h"
#include "attention/cuda/ptx.cuh"

namespace kvant::cuda {

inline constexpr int kAppendThreads = 128;

template <int D>
__global__ void __launch_bounds__(kAppendThreads) append_kernel(const __grid_constant__ AppendArgs args) {
  wait_for_predecessors();
  admit_successors();
  constexpr int kOwn = D / kLanes;  // neighbouring channels of a lane
  const std::int64_t i =
      static_cast<std::int64_t>(blockIdx.x) * (kAppendThreads / kLanes) + threadIdx.x / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int n_stored = 2 * args.n_kv_heads;
  const int n_heads = n_stored + (args.queries.rows != nullptr ? args.n_kv_heads * args.group : 0);
  const std::int64_t row = i / n_heads;
  if (row >= args.n_rows) return;
  const int token = args.tail_token[row];
  if (token < 0) return;
  const int nth = static_cast<int>(i % n_heads);
  const bool is_query = nth >= n_stored;
  const int side = is_query ? 0 : nth / args.n_kv_heads;
  const int head = is_query ? nth - n_stored : nth % args.n_kv_heads;
  const AppendedRows& rows = is_query ? args.queries : args.sides[side];
  const RowType type{args.is_f32, rows.is_wide};
  const std::int64_t at = row * rows.row_stride + head * rows.head_stride + lane * kOwn;
  float x[kOwn];
  load_channels(rows.rows, type, at, x);
  scale_channels(rows.factors,
                 static_cast<std::int64_t>(is_query ? head / args.group : head) * D + lane * kOwn, x);
  if (rows.hadamard != 0) rotate_channels(lane, x);
  if (is_query) {
    store_channels(rows.rows, type, at, x);
    return;
  }
  auto* page = reinterpret_cast<__nv_bfloat16*>(
      const_cast<unsigned char*>(args.tail.find(args.seq[row], head, side, token / kPageTokens)));
#pragma unroll
  for (int j = 0; j < kOwn; ++j)
    page[plain_index(static_cast<PageSide>(side), D, token % kPageTokens, lane * kOwn + j)] =
        __float2bfloat16(x[j]);
}

}  // namespace kvant::cuda
