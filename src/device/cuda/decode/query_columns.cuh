// Assigns queries and query heads to the columns of products if a sequence has several queries. Column i is
// query head i % n_queries of query i / n_queries. If warps share pages, the first warp has the first eight
// columns, the second warp the next eight, and so on. A sequence's last query attends to all tokens. Each
// earlier query attends to one token less at the end of the tail, and `first_tokens` hides one token less
// from that query.
#pragma once

#include "device/cuda/decode/decode_args.h"
#include "device/cuda/decode/work_range.cuh"

namespace kvant::cuda {

// Says which rows of q and out are the queries of a sequence.
struct SequenceQueries {
  int first_row, n;
};
__device__ __forceinline__ SequenceQueries queries_of(const QueryArgs& args, int seq) {
  if (args.begins == nullptr) return {seq * args.of_sequence, args.of_sequence};
  const int first = args.begins[seq];
  return {first, min(args.begins[seq + 1] - first, args.of_sequence)};
}

// Describes a segment of a launch for several queries. All functions need the arguments of a launch for
// several queries. Each call reads the numbers of queries anew, because loops over pages have no registers to
// keep the numbers.
struct QuerySegment : Segment {
  static constexpr bool kSeveralQueries = true;

  // Returns the number of columns. A sequence without queries in this launch has 0.
  __device__ int n_columns(const DecodeArgs& args) const {
    const QueryArgs& queries = of(args);
    return min(max(queries_of(queries, seq).n - queries.first, 0), queries.n) * args.n_queries;
  }
  // Returns the first column of this warp.
  __device__ static int first_column(const DecodeArgs& args) {
    const int warp = static_cast<int>(threadIdx.x) / kLanes;
    return (warp & ((1 << of(args).sharers_log2) - 1)) * kPaddedGroup;
  }
  // Returns the row and the query head that a column stands for.
  __device__ ColumnQuery query_of(const DecodeArgs& args, int column) const {
    const QueryArgs& queries = of(args);
    const int query = query_of_column(queries, max(column, 0));
    return {queries_of(queries, seq).first_row + queries.first + query,
            max(column, 0) - query * args.n_queries};
  }
  // Returns how many tokens at the end of the tail are visible to the sequence's last query but hidden from a
  // column of this warp.
  __device__ int n_later(const DecodeArgs& args, int column_of_warp) const {
    const QueryArgs& queries = of(args);
    const int query = queries.first + query_of_column(queries, first_column(args) + column_of_warp);
    return max(queries_of(queries, seq).n - 1 - query, 0);
  }
  // Returns how many tokens are hidden from a column of this warp, counted from the start of the sequence's
  // first page.
  __device__ int hidden(const DecodeArgs& args, int column_of_warp) const {
    return args.first_tokens == nullptr ? 0 : args.first_tokens[seq] - n_later(args, column_of_warp);
  }

 private:
  __device__ static const QueryArgs& of(const DecodeArgs& args) {
    return static_cast<const SeveralArgs&>(args).queries;
  }
  __device__ static int query_of_column(const QueryArgs& queries, int column) {
    return column * queries.per_head >> 16;
  }
};

}  // namespace kvant::cuda
