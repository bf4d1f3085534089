// A CTA's share of the work, as the schedule deals it out.
#pragma once

#include "attention/cuda/decode/decode_args.h"

namespace kvant::cuda {

// What a column of products stands for: a row of q and out, and a query head of the KV head's.
struct ColumnQuery {
  int row, head;
};

// Neighbouring units of one sequence and KV head.
struct Segment {
  static constexpr bool kSeveralQueries = false;

  int head, seq;
  int first, last;  // units [first, last) of the sequence
  int n_units;      // of the whole sequence
  int n_sealed, n_protected;
  int before;  // units of the CTA before `first`

  // Which unit has a number within the CTA's range, and the other way about.
  __device__ int unit_of(int number) const { return first + number - before; }
  __device__ int number_of(int unit) const { return before + unit - first; }

  // Columns that count, of all warps that share pages; a warp's first one among them; and what one stands
  // for.
  __device__ int n_columns(const DecodeArgs& args) const { return args.n_queries; }
  __device__ static constexpr int first_column(const DecodeArgs&) { return 0; }
  __device__ ColumnQuery query_of(const DecodeArgs&, int column) const { return {seq, column}; }
};

// Walks over the segments of a CTA.
class WorkRange {
 public:
  __device__ explicit WorkRange(const DecodeArgs& args)
      : args_(args), at_(args.schedule.starts[blockIdx.x]), next_(at_.begin) {}

  __device__ bool next(Segment& segment) {
    if (next_ >= at_.end) return false;
    while (at_.seq_begin == at_.seq_end) advance();  // a sequence without tokens
    const int base = at_.head * at_.head_units + at_.seq_begin;
    segment.head = args_.heads.at[at_.head];
    segment.seq = at_.seq;
    segment.n_units = at_.seq_end - at_.seq_begin;
    segment.first = next_ - base;
    segment.last = min(at_.end - base, segment.n_units);
    segment.n_sealed = at_.n_sealed;
    segment.n_protected = at_.n_protected;
    segment.before = next_ - at_.begin;
    next_ = base + segment.last;
    if (next_ < at_.end) advance();
    return true;
  }

  // Which CTAs share the segment's sequence and head.
  __device__ int first_cta(const Segment& segment) const {
    return segment.first > 0 ? args_.schedule.starts[blockIdx.x].first_cta : static_cast<int>(blockIdx.x);
  }
  __device__ int last_cta(const Segment& segment) const {
    return segment.last < segment.n_units ? args_.schedule.starts[blockIdx.x].last_cta
                                          : static_cast<int>(blockIdx.x);
  }

 private:
  __device__ void advance() {
    if (++at_.seq == args_.n_seqs) {
      at_.seq = 0;
      ++at_.head;
    }
    at_.seq_begin = args_.schedule.first_unit[at_.seq];
    at_.seq_end = args_.schedule.first_unit[at_.seq + 1];
    at_.n_sealed = args_.sealed_pages == nullptr ? 0 : args_.sealed_pages[at_.seq];
    at_.n_protected = args_.schedule.protected_pages[at_.seq];
  }

  const DecodeArgs& args_;
  WorkStart at_;
  int next_;
};

// Tokens of an unquantized unit.
__device__ inline int plain_tokens(const DecodeArgs& args, const Segment& segment, int unit) {
  const bool is_protected = unit < segment.n_sealed + segment.n_protected;
  const int page = unit - segment.n_sealed - (is_protected ? 0 : segment.n_protected);
  const int tokens = is_protected ? args.protected_tokens[segment.seq * args.protected_seq_stride +
                                                          segment.head * args.protected_head_stride]
                                  : args.tail_tokens[segment.seq];
  return max(0, min(kPageTokens, tokens - page * kPageTokens));
}

}  // namespace kvant::cuda
