// Writes a step's new keys and values into tail pages, and transforms the step's queries into the basis of
// the keys. A warp processes one row of one head of the keys, the values or the queries.
#pragma once

#include <cuda_bf16.h>

#include "device/cuda/common/ptx.cuh"
#include "device/cuda/seal/new_row.cuh"

namespace kvant::cuda {

inline constexpr int kAppendThreads = 128;

// Writes a row of a KV head and side into a sequence's tail. Each lane passes its channels of the row as x.
template <int D>
__device__ __forceinline__ void store_token(const PageSource& tail, int seq, int head, int side, int token,
                                            int lane, const float (&x)[D / kLanes]) {
  constexpr int kOwn = D / kLanes;
  auto* page = reinterpret_cast<__nv_bfloat16*>(
      const_cast<unsigned char*>(tail.find(seq, head, side, token / kPageTokens)));
  // Token and channel set different bits of a plain index. The index of channel j of a lane is therefore the
  // index of the lane's first channel plus the index of channel j.
  page += plain_index(static_cast<PageSide>(side), D, token % kPageTokens, lane * kOwn);
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    const int further = side == static_cast<int>(PageSide::key) ? plain_index(PageSide::key, D, 0, j)
                                                                : plain_index(PageSide::value, D, 0, j);
    page[further] = __float2bfloat16(x[j]);
  }
}

// Holds the sequence and the tail token of a row. Negative numbers mean that the row belongs to no sequence
// or to no token of the tail.
struct AppendedToken {
  int seq, token;
};

// Returns the token of a row if the caller has listed sequences and tokens in args.seq and args.tail_token.
__device__ __forceinline__ AppendedToken said_token(const AppendArgs& args, std::int64_t row) {
  return {args.seq[row], args.tail_token[row]};
}

// Writes a row of a KV head and side to the place of its token, if the row has a token.
template <int D>
__device__ __forceinline__ void append_row(const AppendArgs& args, std::int64_t row, int side, int head,
                                           const AppendedToken& to, int lane) {
  if (to.seq < 0 || to.token < 0) return;
  float x[D / kLanes];
  load_row<D>(args.sides[side], args.type, row, head, head, lane, x);
  store_token<D>(args.tail, to.seq, head, side, to.token, lane, x);
}

// Returns the token of a row if rows are the last tokens of their sequences.
__device__ __forceinline__ AppendedToken last_token(const AppendArgs& args, std::int64_t row) {
  const int at = static_cast<int>(row);
  int seq = at, end = at + 1;  // `end` is the end of the sequence's rows
  if (args.query_begins != nullptr) {
    if (at < args.query_begins[0] || at >= args.query_begins[args.n_seqs]) return {-1, -1};
    seq = 0;
    for (int high = args.n_seqs; high - seq > 1;) {
      const int middle = (seq + high) / 2;
      (args.query_begins[middle] <= at ? seq : high) = middle;
    }
    end = args.query_begins[seq + 1];
  } else if (args.n_queries > 1) {
    seq = at / args.n_queries;
    end = (seq + 1) * args.n_queries;
  }
  return {seq, args.tail_tokens[seq] - (end - at)};
}

template <int D>
__global__ void __launch_bounds__(kAppendThreads) append_kernel(const __grid_constant__ AppendArgs args) {
  wait_for_predecessors();
  admit_successors();
  constexpr int kOwn = D / kLanes;
  const std::int64_t i =
      static_cast<std::int64_t>(blockIdx.x) * (kAppendThreads / kLanes) + threadIdx.x / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int n_stored = 2 * args.n_kv_heads;
  const int n_heads = n_stored + (args.queries.rows != nullptr ? args.n_kv_heads * args.group : 0);
  const std::int64_t row = i / n_heads;
  if (row >= args.n_rows) return;
  const bool is_last = args.tail_tokens != nullptr;
  const AppendedToken to = is_last ? last_token(args, row) : said_token(args, row);
  const int nth = static_cast<int>(i % n_heads);
  if (nth < n_stored) {
    append_row<D>(args, row, nth / args.n_kv_heads, nth % args.n_kv_heads, to, lane);
    return;
  }
  // The query of a sequence without a tail still attends to its sealed pages.
  if (to.seq < 0 || (to.token < 0 && !is_last)) return;
  const AppendedRows& queries = args.queries;
  const int head = nth - n_stored;
  float x[kOwn];
  load_row<D>(queries, args.type, row, head, head / args.group, lane, x);
  if (lane * kOwn < queries.channels)
    store_channels(queries.rows, {args.type, queries.is_wide},
                   row * queries.row_stride + head * queries.head_stride + lane * kOwn, x);
}

}  // namespace kvant::cuda
