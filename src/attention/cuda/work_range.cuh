// A CTA's share of the work, as the schedule deals it out.
#pragma once

#include "attention/cuda/decode_args.h"

namespace kvant::cuda {

// Neighbouring units of one sequence and KV head.
struct Segment {
  int head, seq;
  int place;        // of the head among the launch's
  int first, last;  // units [first, last) of the sequence
  int n_units;      // of the whole sequence
  int n_sealed, n_side;
  int before;  // units of the CTA before `first`

  // Which unit has a number within the CTA's range, and the other way about.
  __device__ int unit_of(int number) const { return first + number - before; }
  __device__ int number_of(int unit) const { return before + unit - first; }
};

// Where a CTA leaves a sequence and head, its warps wait for the slowest and merge, in which time it would
// get through so many units. One schedule serves all formats where a launch is on all heads: what memory
// binds is up to 1 % faster with 16, but trellis codes, whose pages take each multiprocessor as long as any
// other, are 2 % slower.
__device__ constexpr int segment_cost(bool on_all_heads) {
  return on_all_heads ? 6 : 16;
}

// Of several launches on groups of heads, the last begins on multiprocessors as they leave the one before,
// the first CTAs first: these get more units, by up to this share.
inline constexpr int kGradePercent = 7;

// Equal ranges of the units of some heads. Each sequence of a head counts as some units more, behind its
// own: units have positions, which are divided.
class EqualRanges {
 public:
  __device__ EqualRanges(const DecodeArgs& args, int n_heads, int n_ctas)
      : first_unit_(args.schedule.first_unit),
        n_seqs_(args.n_seqs),
        segment_cost_(segment_cost(n_heads == args.n_kv_heads)) {
    head_units = first_unit_[n_seqs_];
    head_size_ = head_units + n_seqs_ * segment_cost_;
    size_ = static_cast<long long>(head_size_) * n_heads;
    n_busy =
        static_cast<int>(min(static_cast<long long>(n_ctas), static_cast<long long>(head_units) * n_heads));
    constexpr int kLeast = 16;  // of a graded range
    grade_ = args.graded != 0 && size_ >= static_cast<long long>(n_busy) * kLeast ? kGradePercent : 0;
  }

  int head_units;  // of all sequences of a head
  int n_busy;      // CTAs that have work

  // Where the range of a CTA begins: head and sequence, and the unit among those of all heads.
  struct Start {
    int head, seq, unit;
  };
  __device__ Start start(int cta) const {
    const long long position = begin(cta);
    int head = static_cast<int>(position / head_size_);
    const int of_head = static_cast<int>(position - static_cast<long long>(head) * head_size_);
    int seq = find_sequence(of_head);
    const int end = first_unit_[seq + 1];
    const int unit = head * head_units + min(of_head - seq * segment_cost_, end);
    if (of_head - seq * segment_cost_ >= end && ++seq == n_seqs_) {
      seq = 0;
      ++head;
    }
    return {head, seq, unit};
  }

  // The CTA whose range holds a unit of a sequence, counted from the first of all heads.
  __device__ int cta_of_unit(int head, int seq, int unit) const {
    const long long position =
        unit + static_cast<long long>(head) * (head_size_ - head_units) + seq * segment_cost_;
    int cta = static_cast<int>(((position + 1) * n_busy + size_ - 1) / size_) - 1;
    while (begin(cta) > position) --cta;  // graded ranges begin later
    return cta;
  }

 private:
  __device__ long long begin(int cta) const {
    const int percent = 100 * n_busy + grade_ * (n_busy - cta);
    return size_ * cta / n_busy * percent / (100 * n_busy);
  }

  // The sequence that holds a position of a head, with what counts behind it.
  __device__ int find_sequence(int position) const {
    int low = 0;
    int high = n_seqs_ - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (first_unit_[middle] + middle * segment_cost_ <= position) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }

  const std::int32_t* first_unit_;
  int n_seqs_;
  int segment_cost_;
  int head_size_;  // positions
  long long size_;
  int grade_;  // percent
};

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
  const EqualRanges ranges(args, n_heads, n_ctas);
  if (cta >= ranges.n_busy) return start;
  const EqualRanges::Start first = ranges.start(cta);
  start.begin = first.unit;
  start.end = ranges.start(cta + 1).unit;
  start.head_units = ranges.head_units;
  start.n_ctas = ranges.n_busy;
  if (start.begin < start.end) begin_in(args, first.head, first.seq, start);
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
    segment.place = at_.head;
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
    return EqualRanges(args_, args_.heads.n, at_.n_ctas)
        .cta_of_unit(segment.place, segment.seq, at_.begin + segment.before - segment.first + unit);
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
