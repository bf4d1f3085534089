// Exchanges results between CTAs that share a sequence and KV head, one slice at a time. The warp that is the
// last to leave its part of a slice combines all parts. Therefore no warp waits for a warp that has not yet
// left its part. FencedResults takes fewer registers, and MarkedResults takes less time.
#pragma once

#include "device/cuda/common/ptx.cuh"
#include "device/cuda/decode/decode_args.h"

namespace kvant::cuda {

// The maximum of no scores is finite, so differences of maxima are also finite.
inline constexpr float kNoScore = -1e30F;

// Holds two neighbouring channels of a query head's result over some of the tokens. `out` and `sum` belong to
// weights of 2^(score - max).
struct PartialResult {
  float2 out;
  float max, sum;
};

// A slice is kSlice channels of a query head's result. CTAs [first_cta, last_cta] share the slice's sequence
// and KV head. Slices are independent, except that all slices of a query head may share the counter of the
// first slice.
struct SharedSlice {
  // Slices are numbered within the KV head.
  int index;
  int first_cta, last_cta;
  int lane;
  int n_columns;  // columns for which a CTA's partial results have space

  template <int D>
  __device__ int n_slices() const {
    return n_columns * slices_of_column(D);
  }
  // Returns the CTA's place for partial results. A CTA has two places. The first place is for the sequence in
  // which its range begins, and the second place is for the sequence in which its range ends. For first_cta,
  // the shared sequence is the sequence in which the range ends.
  __device__ int slot(int cta) const { return 2 * cta + (cta == first_cta ? 1 : 0); }
  template <int D>
  __device__ std::int32_t* counter(const Schedule& schedule) const {
    return schedule.arrivals + first_cta * n_slices<D>() + index;
  }
};

// Adds the parts of N CTAs to `result`. In lane i, `sum` holds the maximum and sum of part i, or kNoScore and
// 0 if part i does not exist. `out` holds this lane's channels of each part.
template <int N>
__device__ __forceinline__ void take_in(PartialResult& result, float2 sum, const float2 (&out)[N]) {
  float higher = fmaxf(result.max, sum.x);
#pragma unroll
  for (int step = 1; step < 32; step *= 2) higher = fmaxf(higher, __shfl_xor_sync(~0U, higher, step));
  const float factor = exp2_fast(result.max - higher);
  result.max = higher;
  // A part that does not exist has weight 0.
  const float weight = sum.y > 0 ? exp2_fast(sum.x - higher) : 0;
  float total = weight * sum.y;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) total += __shfl_xor_sync(~0U, total, step);
  result.sum = result.sum * factor + total;
  result.out.x *= factor;
  result.out.y *= factor;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float w = __shfl_sync(~0U, weight, i);
    result.out.x += w * out[i].x;
    result.out.y += w * out[i].y;
  }
}

// The loads of this many parts are in flight together. One lane holds the sum of each part, so 32 is the
// limit.
inline constexpr int kPartsTogether = 17;

// Detects parts by a counter. A CTA increases the counter only after its earlier writes are visible to all
// CTAs.
template <int D>
class FencedResults {
 public:
  static __device__ __forceinline__ void leave(const Schedule& schedule, const SharedSlice& slice,
                                               const PartialResult& mine) {
    const std::int64_t slot = slice.slot(static_cast<int>(blockIdx.x));
    auto* out = reinterpret_cast<float2*>(schedule.partial_out + slot * slice.n_columns * D);
    out[slice.index * kLanes + slice.lane] = mine.out;
    if (slice.lane == 0) {
      reinterpret_cast<float2*>(schedule.partial_sums)[slot * slice.n_slices<D>() + slice.index] =
          make_float2(mine.max, mine.sum);
    }
  }

  // Counts the CTA's part of this slice, and of slices that share the counter. All lanes must have left their
  // parts before this call.
  __device__ __forceinline__ FencedResults(const Schedule& schedule, const SharedSlice& slice) {
    int before = 0;
    if (slice.lane == 0) {
      std::int32_t* counter = slice.counter<D>(schedule);
      before = add_acquire_release(counter, 1);
      if (before == slice.last_cta - slice.first_cta) *counter = 0;
    }
    is_last_ = __shfl_sync(~0U, before, 0) == slice.last_cta - slice.first_cta;
  }
  __device__ __forceinline__ bool is_last() const { return is_last_; }

  __device__ __forceinline__ PartialResult combine(const Schedule& schedule, const SharedSlice& slice,
                                                   bool) const {
    const auto* outs =
        reinterpret_cast<const float2*>(schedule.partial_out) + slice.index * kLanes + slice.lane;
    const auto* sums = reinterpret_cast<const float2*>(schedule.partial_sums) + slice.index;
    PartialResult result{{0, 0}, kNoScore, 0};
    for (int begin = slice.first_cta; begin <= slice.last_cta; begin += kPartsTogether) {
      const auto slot = [&](int i) { return slice.slot(min(begin + i, slice.last_cta)); };
      float2 part[kPartsTogether];
      float2 sum = __ldcg(sums + slot(slice.lane) * slice.n_slices<D>());
#pragma unroll
      for (int i = 0; i < kPartsTogether; ++i)
        part[i] = __ldcg(outs + static_cast<std::int64_t>(slot(i)) * (slice.n_columns * D / 2));
      if (slice.lane >= kPartsTogether || begin + slice.lane > slice.last_cta) sum = make_float2(kNoScore, 0);
      take_in(result, sum, part);
    }
    return result;
  }

 private:
  bool is_last_;
};

// This NaN, which no arithmetic produces, marks places whose partial result has not arrived. A place without
// the mark therefore holds a result, and no CTA waits until its writes are visible. The call that makes the
// schedule writes the marks first. The CTA that combines results restores the marks (MarkedParts::take).
inline constexpr int kUnwrittenByte = 0xff;
inline constexpr std::uint32_t kUnwrittenBits = 0xffffffffU;  // The word is four times kUnwrittenByte.

__device__ __forceinline__ bool is_unwritten(const float2& x) {
  return __float_as_uint(x.x) == kUnwrittenBits || __float_as_uint(x.y) == kUnwrittenBits;
}
__device__ __forceinline__ float2 unwritten() {
  return make_float2(__uint_as_float(kUnwrittenBits), __uint_as_float(kUnwrittenBits));
}
__device__ __forceinline__ void write_partial(float2* to, float2 x) {
  constexpr std::uint32_t kNan = 0x7fffffffU;
  if (__float_as_uint(x.x) == kUnwrittenBits) x.x = __uint_as_float(kNan);
  if (__float_as_uint(x.y) == kUnwrittenBits) x.y = __uint_as_float(kNan);
  store_relaxed(to, x);
}

// Loads the parts of up to kPartsTogether CTAs, with all loads in flight together.
template <int D>
struct MarkedParts {
  int n;
  float2 sum;                  // maximum and sum of this lane's part
  float2 out[kPartsTogether];  // this lane's channels of each part

  __device__ __forceinline__ MarkedParts(const Schedule& schedule, const SharedSlice& slice, int begin)
      : n(min(kPartsTogether, slice.last_cta + 1 - begin)),
        first_slot_(begin == slice.first_cta ? 1 : 0),
        slot_size_(slice.n_columns * D / 2),
        outs_(reinterpret_cast<float2*>(schedule.partial_out) +
              static_cast<std::int64_t>(2 * begin) * slot_size_ + slice.index * kLanes + slice.lane) {
    const int own = min(slice.lane, n - 1);
    sum_ = reinterpret_cast<float2*>(schedule.partial_sums) + slice.index +
           (2 * (begin + own) + (own == 0 ? first_slot_ : 0)) * slice.n_slices<D>();
    load();
  }

  __device__ __forceinline__ void load() {
    // Addresses are computed again here, because registers are scarce and must not hold them.
    const float2* from = opaque(outs_);
    sum = load_relaxed(sum_);
    out[0] = load_relaxed(from + first_slot_ * slot_size_);
#pragma unroll
    for (int i = 1; i < kPartsTogether; ++i)
      out[i] = i < n ? load_relaxed(from + 2 * i * slot_size_) : make_float2(0, 0);
  }
  __device__ __forceinline__ bool are_there() const {
    bool all = !is_unwritten(sum);
#pragma unroll
    for (int i = 0; i < kPartsTogether; ++i) all = all && !is_unwritten(out[i]);
    return __all_sync(~0U, all);
  }
  // Restores the marks of the parts that have been read.
  __device__ __forceinline__ void take(int lane) const {
    if (lane < n) store_relaxed(sum_, unwritten());
    float2* const to = opaque(outs_);
    store_relaxed(to + first_slot_ * slot_size_, unwritten());
#pragma unroll
    for (int i = 1; i < kPartsTogether; ++i)
      if (i < n) store_relaxed(to + 2 * i * slot_size_, unwritten());
  }

 private:
  // The first part lies this many places after place 2 * cta of its CTA (SharedSlice::slot).
  int first_slot_;
  int slot_size_;
  float2 *outs_, *sum_;
};

// Detects parts by their contents. A CTA writes its part before it counts. When the last CTA counts, all
// other parts have therefore arrived or will arrive soon, whatever else the GPU runs. The loads of parts
// overlap the counting.
template <int D>
class MarkedResults {
 public:
  static __device__ __forceinline__ void leave(const Schedule& schedule, const SharedSlice& slice,
                                               const PartialResult& mine) {
    const std::int64_t slot = slice.slot(static_cast<int>(blockIdx.x));
    auto* out = reinterpret_cast<float2*>(schedule.partial_out + slot * slice.n_columns * D);
    write_partial(out + slice.index * kLanes + slice.lane, mine.out);
    if (slice.lane == 0) {
      write_partial(
          reinterpret_cast<float2*>(schedule.partial_sums) + slot * slice.n_slices<D>() + slice.index,
          make_float2(mine.max, mine.sum));
    }
  }

  // Counts this CTA's part and begins to load the other parts. All lanes must have called leave() for every
  // slice that shares the counter.
  __device__ __forceinline__ MarkedResults(const Schedule& schedule, const SharedSlice& slice)
      : counter_(slice.counter<D>(schedule)),
        before_(slice.lane == 0 ? add_relaxed(counter_, 1) : -1),
        last_(slice.last_cta - slice.first_cta),
        parts_(schedule, slice, slice.first_cta) {}
  // Returns whether this CTA was the last to leave its part. All lanes must call this function.
  __device__ __forceinline__ bool is_last() const {
    if (before_ == last_) *counter_ = 0;
    return __any_sync(~0U, before_ == last_);
  }

  // Combines all parts of a slice. `is_first` says that the constructor has begun to load the parts of this
  // slice.
  __device__ __forceinline__ PartialResult combine(const Schedule& schedule, const SharedSlice& slice,
                                                   bool is_first) {
    if (!is_first) parts_ = MarkedParts<D>(schedule, slice, slice.first_cta);
    PartialResult result{{0, 0}, kNoScore, 0};
#pragma unroll 1
    for (int begin = slice.first_cta;;) {
      while (!parts_.are_there()) parts_.load();
      take_in(result, slice.lane < parts_.n ? parts_.sum : make_float2(kNoScore, 0), parts_.out);
      parts_.take(slice.lane);
      begin += kPartsTogether;
      if (begin > slice.last_cta) return result;
      parts_ = MarkedParts<D>(schedule, slice, begin);
    }
  }

 private:
  std::int32_t* counter_;
  int before_, last_;
  MarkedParts<D> parts_;
};

}  // namespace kvant::cuda
