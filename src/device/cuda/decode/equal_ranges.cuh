// Divides the units of some KV heads into equal ranges for the CTAs of a launch.
#pragma once

#include "device/cuda/decode/decode_args.h"
#include "device/cuda/decode/work_range.cuh"

namespace kvant::cuda {

// The cost, in units, of leaving a sequence and head: the CTA's warps wait for the slowest and merge. One
// schedule serves all formats if a launch is on all heads. With 16, formats bound by memory bandwidth are up
// to 1 % faster, but trellis codes, which are bound by the SMs, are 2 % slower.
__device__ constexpr int segment_cost(bool on_all_heads) {
  return on_all_heads ? 6 : 16;
}

// The last of several launches on groups of heads begins on SMs as they leave the previous launch, the first
// CTAs first. These get more units, by up to this share.
inline constexpr int kGradePercent = 7;

// Equal ranges of the units of some heads. Each sequence of a head counts as a few extra units after its own.
// Units therefore have positions, and the positions are divided. Alternatively ranges are moved to whole
// sequences: each begins at the nearest start of a sequence.
enum class Cuts { anywhere, between_sequences };
class EqualRanges {
 public:
  __device__ EqualRanges(const DecodeArgs& args, int n_heads, bool graded, int n_ctas, Cuts cuts)
      : first_unit_(args.schedule.first_unit),
        n_seqs_(args.n_seqs),
        segment_cost_(segment_cost(n_heads == args.n_kv_heads)),
        cuts_(cuts) {
    head_units = first_unit_[n_seqs_];
    head_size_ = head_units + n_seqs_ * segment_cost_;
    size_ = static_cast<long long>(head_size_) * n_heads;
    n_busy =
        static_cast<int>(min(static_cast<long long>(n_ctas), static_cast<long long>(head_units) * n_heads));
    constexpr int kLeast = 16;  // of a graded range
    grade_ = graded && size_ >= static_cast<long long>(n_busy) * kLeast ? kGradePercent : 0;
  }

  int head_units;  // units of one head, over all sequences
  int n_busy;      // CTAs that have work

  // Return the size of a CTA's range, and the mean size.
  __device__ long long positions(int cta) const { return begin(cta + 1) - begin(cta); }
  __device__ long long mean_positions() const { return size_ / n_busy; }

  // The start of a CTA's range: head, sequence, and the unit among those of all heads.
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

  // Returns the CTA whose range holds a unit of a sequence, counted from the first of all heads.
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
    const long long position = size_ * cta / n_busy * percent / (100 * n_busy);
    return cuts_ == Cuts::anywhere ? position : nearest_sequence(position);
  }

  // Returns the start of the sequence that begins nearest to a position.
  __device__ long long nearest_sequence(long long position) const {
    const int of_head = static_cast<int>(position % head_size_);
    const int seq = find_sequence(of_head);
    const int before = of_head - first_unit_[seq] - seq * segment_cost_;
    const int behind = first_unit_[seq + 1] + (seq + 1) * segment_cost_ - of_head;
    return position + (behind < before ? behind : -before);
  }

  // Returns the sequence that holds a position of a head, including the extra units after it.
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
  Cuts cuts_;
  int head_size_;  // positions
  long long size_;
  int grade_;  // percent
};

// Returns a CTA's part of the units of a launch's heads, in equal ranges for up to n_ctas CTAs.
__device__ inline WorkStart equal_range(const DecodeArgs& args, int n_heads, bool graded, int n_ctas,
                                        Cuts cuts, int cta) {
  WorkStart start{};
  const EqualRanges ranges(args, n_heads, graded, n_ctas, cuts);
  if (cta >= ranges.n_busy) return start;
  const EqualRanges::Start first = ranges.start(cta);
  const EqualRanges::Start next = ranges.start(cta + 1);
  start.begin = first.unit;
  start.end = next.unit;
  if (start.begin == start.end) return start;
  start.head_units = ranges.head_units;
  begin_in(args, first.head, first.seq, start);
  start.first_cta = start.last_cta = cta;
  const int of_sequence = first.unit - first.head * ranges.head_units - start.seq_begin;
  if (of_sequence > 0) start.first_cta = ranges.cta_of_unit(first.head, first.seq, first.unit - of_sequence);
  const int next_head = next.head * ranges.head_units;
  if (next.unit > next_head + args.schedule.first_unit[next.seq])
    start.last_cta =
        ranges.cta_of_unit(next.head, next.seq, next_head + args.schedule.first_unit[next.seq + 1] - 1);
  return start;
}

}  // namespace kvant::cuda
