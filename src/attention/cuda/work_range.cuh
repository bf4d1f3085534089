// A CTA's share of the work, as the schedule deals it out.
#pragma once

#include "attention/cuda/decode_args.h"

namespace kvant::cuda {

// Neighbouring units of one sequence and KV head.
struct Segment {
  int head, seq;
  int first, last;  // units [first, last) of the sequence
  int n_units;      // of the whole sequence
  int n_sealed, n_side;
  int before;  // units of the CTA before `first`

  // Which unit has a number within the CTA's range, and the other way about.
  __device__ int unit_of(int number) const { return first + number - before; }
  __device__ int number_of(int unit) const { return before + unit - first; }
};

// The CTA whose range holds a unit, where CTA c has [c * units / n_ctas, (c + 1) * units / n_ctas).
__device__ inline int cta_of_unit(long long units, long long unit, int n_ctas) {
  return static_cast<int>(((unit + 1) * n_ctas + units - 1) / units) - 1;
}

// The sequence among [0, n_seqs) that holds unit `unit` of a head.
__device__ inline int find_sequence(const std::int32_t* first_unit, int n_seqs, int unit) {
  int low = 0;
  int high = n_seqs - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (first_unit[middle] <= unit) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// Lets a CTA begin in a sequence of the head at place `head` among a launch's.
__device__ inline void begin_in(const DecodeArgs& args, int head, int seq, WorkStart& start) {
  start.head = head;
  start.seq = seq;
  start.seq_begin = args.schedule.first_unit[seq];
  start.seq_end = args.schedule.first_unit[seq + 1];
  start.n_sealed = args.sealed_pages == nullptr ? 0 : args.sealed_pages[seq];
  start.n_side = args.schedule.side_pages[seq];
}

// A CTA's part of the units of n_heads heads in equal ranges for up to n_ctas CTAs.
__device__ inline WorkStart equal_range(const DecodeArgs& args, int n_heads, int n_ctas, int cta) {
  WorkStart start{};
  const int head_units = args.schedule.first_unit[args.n_seqs];
  const long long units = static_cast<long long>(head_units) * n_heads;
  const int n_busy = static_cast<int>(min(static_cast<long long>(n_ctas), units));
  if (cta >= n_busy) return start;
  start.begin = static_cast<int>(cta * units / n_busy);
  start.end = static_cast<int>((cta + 1) * units / n_busy);
  start.head_units = head_units;
  start.n_ctas = n_busy;
  const int head = start.begin / head_units;
  begin_in(args, head, find_sequence(args.schedule.first_unit, args.n_seqs, start.begin - head * head_units),
           start);
  return start;
}

// Where this CTA begins: of a launch on all heads the schedule says so.
__device__ inline WorkStart start_of_cta(const DecodeArgs& args) {
  const auto cta = static_cast<int>(blockIdx.x);
  if (args.heads.n == args.n_kv_heads) return args.schedule.start[cta];
  return equal_range(args, args.heads.n, static_cast<int>(gridDim.x), cta);
}

// Walks over the segments of a CTA.
class WorkRange {
 public:
  __device__ explicit WorkRange(const DecodeArgs& args)
      : args_(args), at_(start_of_cta(args)), next_(at_.begin) {}

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
    segment.n_side = at_.n_side;
    segment.before = next_ - at_.begin;
    next_ = base + segment.last;
    if (next_ < at_.end) advance();
    return true;
  }

  // Which CTAs share the segment's sequence and head.
  __device__ int first_cta(const Segment& segment) const {
    return at_.n_ctas == 0 ? at_.first_cta : cta_of(segment, 0);
  }
  __device__ int last_cta(const Segment& segment) const {
    return at_.n_ctas == 0 ? at_.last_cta : cta_of(segment, segment.n_units - 1);
  }

 private:
  __device__ int cta_of(const Segment& segment, int unit) const {
    const long long units = static_cast<long long>(at_.head_units) * args_.heads.n;
    return cta_of_unit(units, at_.begin + segment.before - segment.first + unit, at_.n_ctas);
  }
  __device__ void advance() {
    if (++at_.seq == args_.n_seqs) {
      at_.seq = 0;
      ++at_.head;
    }
    at_.seq_begin = args_.schedule.first_unit[at_.seq];
    at_.seq_end = args_.schedule.first_unit[at_.seq + 1];
    at_.n_sealed = args_.sealed_pages == nullptr ? 0 : args_.sealed_pages[at_.seq];
    at_.n_side = args_.schedule.side_pages[at_.seq];
  }

  const DecodeArgs& args_;
  WorkStart at_;
  int next_;
};

// Tokens of an unquantized unit.
__device__ inline int plain_tokens(const DecodeArgs& args, const Segment& segment, int unit) {
  const bool side = unit < segment.n_sealed + segment.n_side;
  const int page = unit - segment.n_sealed - (side ? 0 : segment.n_side);
  const int tokens =
      side ? args.side_tokens[segment.seq * args.side_seq_stride + segment.head * args.side_head_stride]
           : args.tail_tokens[segment.seq];
  return max(0, min(kTokens, tokens - page * kTokens));
}

}  // namespace kvant::cuda
