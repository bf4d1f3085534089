// The columns of products where a launch is for several queries of a sequence: column i is query head
// i % n_queries of query i / n_queries, those of the first eight columns a warp's, and so on. A sequence's
// last query sees all of its tokens, each before it a token less: at the end of the tail, and of those that
// `first_tokens` hides.
#pragma once

#include "device/cuda/decode/decode_args.h"
#include "device/cuda/decode/work_range.cuh"

namespace kvant::cuda {

// A sequence's queries.
struct SequenceQueries {
  int first_row, n;
};
__device__ __forceinline__ SequenceQueries queries_of(const QueryArgs& args, int seq) {
  if (args.begins == nullptr) return {seq * args.of_sequence, args.of_sequence};
  const int first = args.begins[seq];
  return {first, min(args.begins[seq + 1] - first, args.of_sequence)};
}

// Counts are read when they are needed, at the ends of a segment: loops over pages have no registers for
// them. `args` of its members are those of a launch for several queries.
struct QuerySegment : Segment {
  static constexpr bool kSeveralQueries = true;

  // 0 where the sequence has fewer queries than those before the launch's.
  __device__ int n_columns(const DecodeArgs& args) const {
    const QueryArgs& queries = of(args);
    return min(max(queries_of(queries, seq).n - queries.first, 0), queries.n) * args.n_queries;
  }
  __device__ static int first_column(const DecodeArgs& args) {
    const int warp = static_cast<int>(threadIdx.x) / kLanes;
    return (warp & ((1 << of(args).sharers_log2) - 1)) * kPaddedGroup;
  }
  __device__ ColumnQuery query_of(const DecodeArgs& args, int column) const {
    const QueryArgs& queries = of(args);
    const int query = query_of_column(queries, max(column, 0));
    return {queries_of(queries, seq).first_row + queries.first + query,
            max(column, 0) - query * args.n_queries};
  }
  // How many tokens more than a warp's column the sequence's last query sees.
  __device__ int behind(const DecodeArgs& args, int column_of_warp) const {
    const QueryArgs& queries = of(args);
    const int query = queries.first + query_of_column(queries, first_column(args) + column_of_warp);
    return max(queries_of(queries, seq).n - 1 - query, 0);
  }
  // Of a sequence's first page, and those behind it: so many tokens a column does not see.
  __device__ int hidden(const DecodeArgs& args, int column_of_warp) const {
    return args.first_tokens == nullptr ? 0 : args.first_tokens[seq] - behind(args, column_of_warp);
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
