// Divides the units of some KV heads into ranges of equal cost for the CTAs of a launch. Leaving a sequence
// costs a CTA time, which is counted as extra units after the sequence. Ranges are therefore cut in
// positions, which count units and extra units alike.
#pragma once

#include "device/cuda/decode/decode_args.h"
#include "device/cuda/decode/work_range.cuh"

namespace kvant::cuda {

// Returns the cost of leaving a sequence and head, in units. The cost arises because the CTA's warps wait for
// the slowest warp and merge. A launch that has its SMs to itself needs one value for all formats. With a
// cost of 16 instead of 6, formats bound by memory bandwidth are up to 1 % faster. Trellis codes, which are
// bound by the SMs, are then 2 % slower.
__device__ constexpr int segment_cost(bool shares_sms) {
  return shares_sms ? 16 : 6;
}

// A call's last launch on a group of heads begins on SMs as the SMs finish the previous launch. CTAs with low
// numbers begin first, and get up to this share of units more.
inline constexpr int kGradePercent = 7;

// Says where ranges may begin: anywhere, or only at the start of a sequence. With between_sequences each
// range begins at the start that is nearest to its equal share.
enum class Cuts { anywhere, between_sequences };
// Computes the ranges of a launch on the first `n_heads` heads of its list.
class EqualRanges {
 public:
  __device__ EqualRanges(const DecodeArgs& args, int n_heads, Division division, int n_ctas, Cuts cuts)
      : first_unit_(args.schedule.first_unit),
        n_seqs_(args.n_seqs),
        segment_cost_(segment_cost(n_heads < args.n_kv_heads && division != Division::side_by_side)),
        cuts_(cuts) {
    head_units = first_unit_[n_seqs_];
    head_size_ = head_units + n_seqs_ * segment_cost_;
    size_ = static_cast<long long>(head_size_) * n_heads;
    n_busy =
        static_cast<int>(min(static_cast<long long>(n_ctas), static_cast<long long>(head_units) * n_heads));
    constexpr int kLeast = 16;  // least number of positions of a graded range
    grade_ =
        division == Division::graded && size_ >= static_cast<long long>(n_busy) * kLeast ? kGradePercent : 0;
  }

  int head_units;  // units of one head, over all sequences
  // This many CTAs have work.
  int n_busy;

  // positions() returns the size of one CTA's range, and mean_positions() returns the mean size of all
  // ranges, in positions.
  __device__ long long positions(int cta) const { return begin(cta + 1) - begin(cta); }
  __device__ long long mean_positions() const { return size_ / n_busy; }

  // Says where a CTA's range begins. `unit` is counted from the first unit of the launch's first head.
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

  // Returns the CTA whose range holds a unit of a sequence. `unit` is counted from the first unit of the
  // launch's first head.
  __device__ int cta_of_unit(int head, int seq, int unit) const {
    const long long position =
        unit + static_cast<long long>(head) * (head_size_ - head_units) + seq * segment_cost_;
    int cta = static_cast<int>(((position + 1) * n_busy + size_ - 1) / size_) - 1;
    // The estimate assumes equal ranges, and graded ranges begin later.
    while (begin(cta) > position) --cta;
    return cta;
  }

 private:
  // Returns the position at which a CTA's range begins.
  __device__ long long begin(int cta) const {
    const int percent = 100 * n_busy + grade_ * (n_busy - cta);
    const long long position = size_ * cta / n_busy * percent / (100 * n_busy);
    return cuts_ == Cuts::anywhere ? position : nearest_sequence(position);
  }

  // Returns the position of the sequence start that is nearest to `position`.
  __device__ long long nearest_sequence(long long position) const {
    const int of_head = static_cast<int>(position % head_size_);
    const int seq = find_sequence(of_head);
    const int before = of_head - first_unit_[seq] - seq * segment_cost_;
    const int after = first_unit_[seq + 1] + (seq + 1) * segment_cost_ - of_head;
    return position + (after < before ? after : -before);
  }

  // Returns the sequence of a head that holds a position. The extra units after a sequence belong to that
  // sequence.
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
  int head_size_;  // positions of one head
  // All heads of the launch have this many positions.
  long long size_;
  int grade_;  // percent
};

// Returns a CTA's share of the units of a launch's heads if ranges are equal. Up to n_ctas CTAs get work.
__device__ inline WorkStart equal_range(const DecodeArgs& args, int n_heads, Division division, int n_ctas,
                                        Cuts cuts, int cta) {
  WorkStart start{};
  const EqualRanges ranges(args, n_heads, division, n_ctas, cuts);
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
