// Walks over a CTA's share of the work, as the schedule divides it. A share is a range of units over several
// sequences and KV heads. The walk yields segments, each of which lies within one sequence and KV head.
#pragma once

#include <cstddef>

#include "device/cuda/decode/decode_args.h"

namespace kvant::cuda {

// Says what a column of products stands for: a row of q and out, and a query head of the KV head.
struct ColumnQuery {
  int row, head;
};

// Describes consecutive units of one sequence and KV head.
struct Segment {
  static constexpr bool kSeveralQueries = false;

  int head, seq;
  int first, last;  // units [first, last) of the sequence
  int n_units;      // units of the whole sequence
  int n_sealed, n_protected;
  int before;  // units of the CTA before `first`

  // unit_of() and number_of() convert between a unit's index within the sequence and its number within the
  // CTA's range.
  __device__ int unit_of(int number) const { return first + number - before; }
  __device__ int number_of(int unit) const { return before + unit - first; }

  // n_columns() returns the number of columns of all sharing warps. first_column() returns the first column
  // of this warp. query_of() returns the row and the query head that a column stands for.
  __device__ int n_columns(const DecodeArgs& args) const { return args.n_queries; }
  __device__ static constexpr int first_column(const DecodeArgs&) { return 0; }
  __device__ ColumnQuery query_of(const DecodeArgs&, int column) const { return {seq, column}; }
};

// Makes `start` begin in a sequence of the KV head at index `head` of the launch.
__device__ inline void begin_in(const DecodeArgs& args, int head, int seq, WorkStart& start) {
  start.head = head;
  start.seq = seq;
  start.seq_begin = args.schedule.first_unit[seq];
  start.seq_end = args.schedule.first_unit[seq + 1];
  start.n_sealed = args.sealed_pages == nullptr ? 0 : args.sealed_pages[seq];
  start.n_protected = args.schedule.protected_pages[seq];
}

// Holds the position of a single thread that walks over a CTA's range.
class ThreadPlace {
 public:
  __device__ explicit ThreadPlace(const WorkStart& start) : at_(start) {}

  __device__ const WorkStart& get() const { return at_; }
  // Moves to the start of a sequence and head.
  __device__ void enter(const DecodeArgs& args, int head, int seq) { begin_in(args, head, seq, at_); }

 private:
  WorkStart at_;
};

// Holds the position of a warp that walks over a CTA's range. Lane i keeps number i of the WorkStart, so the
// position takes only one register in loops over pages, in which registers are scarce. With eleven registers,
// the compiler spilled some of them right after their loads, so the warp waited for memory.
class WarpPlace {
 public:
  __device__ explicit WarpPlace(const WorkStart& start)
      : number_(reinterpret_cast<const std::int32_t*>(&start)[min(lane(), kNumbers - 1)]) {}

  // Returns the position without first_cta and last_cta.
  __device__ WorkStart get() const {
    WorkStart at{};
    auto* numbers = reinterpret_cast<std::int32_t*>(&at);
#pragma unroll
    for (int i = 0; i < static_cast<int>(offsetof(WorkStart, first_cta) / kNumberBytes); ++i)
      numbers[i] = __shfl_sync(~0U, number_, i);
    return at;
  }
  __device__ void enter(const DecodeArgs& args, int head, int seq) {
    const auto has = [](std::size_t offset) { return lane() == static_cast<int>(offset / kNumberBytes); };
    if (has(offsetof(WorkStart, head))) number_ = head;
    if (has(offsetof(WorkStart, seq))) number_ = seq;
    const std::int32_t* of_seqs = nullptr;
    if (has(offsetof(WorkStart, seq_begin))) of_seqs = args.schedule.first_unit;
    if (has(offsetof(WorkStart, seq_end))) of_seqs = args.schedule.first_unit + 1;
    // If the pointer is null, n_sealed is 0 from the start and does not change.
    if (has(offsetof(WorkStart, n_sealed))) of_seqs = args.sealed_pages;
    if (has(offsetof(WorkStart, n_protected))) of_seqs = args.schedule.protected_pages;
    if (of_seqs != nullptr) number_ = of_seqs[seq];
  }
  // first_cta() returns the first CTA that shares the sequence and head in which the range begins. last_cta()
  // returns the last CTA that shares the sequence and head in which the range ends.
  __device__ int first_cta() const {
    return get(offsetof(WorkStart, first_cta));
  }
  __device__ int last_cta() const {
    return get(offsetof(WorkStart, last_cta));
  }

 private:
  static constexpr std::size_t kNumberBytes = sizeof(std::int32_t);
  static constexpr int kNumbers = offsetof(WorkStart, last_cta) / kNumberBytes + 1;

  static __device__ int lane() {
    return static_cast<int>(threadIdx.x) % kLanes;
  }
  __device__ int get(std::size_t offset) const {
    return __shfl_sync(~0U, number_, static_cast<int>(offset / kNumberBytes));
  }

  std::int32_t number_;
};

// Walks over the segments of a CTA's range. Place is ThreadPlace, or WarpPlace if all lanes of a warp walk
// together. Each call of next() also loads the data for the next call.
template <class Place>
class WorkRange {
 public:
  __device__ explicit WorkRange(const DecodeArgs& args)
      : args_(args), place_(args.schedule.starts[blockIdx.x]) {}

  __device__ int n_units() const {
    const WorkStart at = place_.get();
    return at.end - at.begin;
  }
  __device__ bool next(Segment& segment) {
    while (true) {
      const WorkStart at = place_.get();
      const int base = at.head * at.head_units + at.seq_begin;
      // The range may begin within a sequence.
      const int first = max(at.begin, base);
      if (first >= at.end) return false;
      const bool wraps = at.seq + 1 == args_.n_seqs;
      place_.enter(args_, at.head + (wraps ? 1 : 0), wraps ? 0 : at.seq + 1);
      // The sequence has no tokens.
      if (at.seq_begin == at.seq_end) continue;
      segment.head = args_.heads.at[at.head];
      segment.seq = at.seq;
      segment.n_units = at.seq_end - at.seq_begin;
      segment.first = first - base;
      segment.last = min(at.end - base, segment.n_units);
      segment.n_sealed = at.n_sealed;
      segment.n_protected = at.n_protected;
      segment.before = first - at.begin;
      return true;
    }
  }

  // first_cta() and last_cta() return the first and the last CTA that share the segment's sequence and head.
  __device__ int first_cta(const Segment& segment) const {
    return segment.first > 0 ? place_.first_cta() : static_cast<int>(blockIdx.x);
  }
  __device__ int last_cta(const Segment& segment) const {
    return segment.last < segment.n_units ? place_.last_cta() : static_cast<int>(blockIdx.x);
  }

 private:
  const DecodeArgs& args_;
  Place place_;
};

// Returns the number of tokens in an unquantized unit.
__device__ inline int plain_tokens(const DecodeArgs& args, const Segment& segment, int unit) {
  const bool is_protected = unit < segment.n_sealed + segment.n_protected;
  const int page = unit - segment.n_sealed - (is_protected ? 0 : segment.n_protected);
  const int tokens = is_protected ? args.protected_tokens[segment.seq * args.protected_seq_stride +
                                                          segment.head * args.protected_head_stride]
                                  : args.tail_tokens[segment.seq];
  return max(0, min(kPageTokens, tokens - page * kPageTokens));
}

}  // namespace kvant::cuda
