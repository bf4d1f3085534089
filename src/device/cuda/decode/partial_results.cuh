// Exchanges results between CTAs that share a sequence and KV head, one slice at a time. Each CTA leaves its
// part of a slice, and one of its warps counts the CTA. The warp that counts last combines all parts.
// Therefore no warp waits for a CTA that may not have begun. FencedResults takes fewer registers, and
// MarkedResults takes less time.
//
// More than kPartsTogether parts are combined in two levels, because one warp would take too long. CTAs form
// blocks of kPartsTogether. The last CTA of each block combines the parts of its block and leaves the result
// as one part of the second level.
#pragma once

#include "device/cuda/common/ptx.cuh"
#include "device/cuda/decode/decode_args.h"
#include "device/cuda/decode/sharing_ctas.h"

namespace kvant::cuda {

// The maximum of no scores is finite, so differences of maxima are also finite.
inline constexpr float kNoScore = -1e30F;

// Holds two neighbouring channels of a query head's result over some of the tokens. `out` and `sum` belong to
// weights of 2^(score - max).
struct PartialResult {
  float2 out;
  float max, sum;
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

// Parts of this many slices of a query head are combined at the same time if outputs are rotated. Registers
// do not hold the parts of more slices.
__device__ constexpr int slices_together(int d) {
  return d > kSlice ? 2 : 1;
}

// Detects parts by a counter. A CTA increases the counter only after its earlier writes are visible to all
// CTAs.
template <int D>
class FencedResults {
 public:
  static constexpr int kTogether = 1;  // slices that combine() gives

  static __device__ __forceinline__ void leave(const Schedule& schedule, const SharedSlice& slice,
                                               const PartialResult& mine) {
    const std::int64_t slot = slice.slot(slice.own_place);
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
      std::int32_t* counter = slice.counter_in<D>(schedule);
      before = add_acquire_release(counter, 1);
      if (before == slice.n - 1) *counter = 0;
    }
    is_last_ = __shfl_sync(~0U, before, 0) == slice.n - 1;
  }

  __device__ __forceinline__ bool combine(const Schedule& schedule, const SharedSlice& slice, bool, bool,
                                          PartialResult (&result)[kTogether]) const {
    if (!is_last_) return false;
    const auto* outs =
        reinterpret_cast<const float2*>(schedule.partial_out) + slice.index * kLanes + slice.lane;
    const auto* sums = reinterpret_cast<const float2*>(schedule.partial_sums) + slice.index;
    result[0] = {{0, 0}, kNoScore, 0};
    for (int begin = 0; begin < slice.n; begin += kPartsTogether) {
      const auto slot = [&](int i) { return slice.slot(slice.first_place + min(begin + i, slice.n - 1)); };
      float2 part[kPartsTogether];
      float2 sum = __ldcg(sums + slot(slice.lane) * slice.n_slices<D>());
#pragma unroll
      for (int i = 0; i < kPartsTogether; ++i)
        part[i] = __ldcg(outs + static_cast<std::int64_t>(slot(i)) * (slice.n_columns * D / 2));
      if (slice.lane >= kPartsTogether || begin + slice.lane >= slice.n) sum = make_float2(kNoScore, 0);
      take_in(result[0], sum, part);
    }
    return true;
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

// Loads the parts of up to kPartsTogether CTAs, with all loads of a call in flight together. The parts cover
// one slice or, if `both` is set, the slice and the next slice of the same query head.
template <int D>
struct MarkedParts {
  static constexpr int kTogether = slices_together(D);

  int n;
  bool both;
  float2 sum[kTogether];                  // maximum and sum of this lane's part
  float2 out[kTogether][kPartsTogether];  // this lane's channels of each part

  __device__ __forceinline__ MarkedParts(const Schedule& schedule, const SharedSlice& slice, bool both,
                                         int begin)
      : n(min(kPartsTogether, slice.n - begin)),
        both(both),
        first_slot_(begin == 0 && slice.begins ? 1 : 0),
        slot_size_(slice.n_columns * D / 2) {
    const int place = slice.first_place + begin;
    outs_ = reinterpret_cast<float2*>(schedule.partial_out) +
            static_cast<std::int64_t>(2 * place) * slot_size_ + slice.index * kLanes + slice.lane;
    const int own = min(slice.lane, n - 1);
    sum_ = reinterpret_cast<float2*>(schedule.partial_sums) + slice.index +
           (2 * (place + own) + (own == 0 ? first_slot_ : 0)) * slice.n_slices<D>();
  }

  __device__ __forceinline__ void load() {
#pragma unroll
    for (int s = 0; s < kTogether; ++s) {
      // Addresses are computed again here, because registers are scarce and must not hold them.
      const float2* from = opaque(outs_) + s * kLanes;
      const bool is_read = s == 0 || both;
      sum[s] = is_read ? load_relaxed(sum_ + s) : make_float2(kNoScore, 0);
      out[s][0] = is_read ? load_relaxed(from + first_slot_ * slot_size_) : make_float2(0, 0);
#pragma unroll
      for (int i = 1; i < kPartsTogether; ++i)
        out[s][i] = is_read && i < n ? load_relaxed(from + 2 * i * slot_size_) : make_float2(0, 0);
    }
  }
  __device__ __forceinline__ bool are_there() const {
    bool all = true;
#pragma unroll
    for (int s = 0; s < kTogether; ++s) {
      all = all && !is_unwritten(sum[s]);
#pragma unroll
      for (int i = 0; i < kPartsTogether; ++i) all = all && !is_unwritten(out[s][i]);
    }
    return __all_sync(~0U, all);
  }
  // Restores the marks of the parts that have been read.
  __device__ __forceinline__ void take(int lane) const {
#pragma unroll
    for (int s = 0; s < kTogether; ++s) {
      if (s > 0 && !both) break;
      if (lane < n) store_relaxed(sum_ + s, unwritten());
      float2* const to = opaque(outs_) + s * kLanes;
      store_relaxed(to + first_slot_ * slot_size_, unwritten());
#pragma unroll
      for (int i = 1; i < kPartsTogether; ++i)
        if (i < n) store_relaxed(to + 2 * i * slot_size_, unwritten());
    }
  }

 private:
  // first_slot_ is 1 if the first part is the second part of its place (SharedSlice::slot), otherwise 0.
  int first_slot_;
  int slot_size_;
  float2 *outs_, *sum_;
};

// Detects parts by their contents. A warp may count its CTA shortly before another warp of the CTA has left
// the part. That other warp waits for nothing before it leaves the part. When the last CTA counts, all parts
// have therefore arrived or will arrive soon, whatever else the GPU runs. The loads of parts overlap the
// counting.
template <int D>
class MarkedResults {
 public:
  static constexpr int kTogether = MarkedParts<D>::kTogether;

  static __device__ __forceinline__ void leave(const Schedule& schedule, const SharedSlice& slice,
                                               const PartialResult& mine) {
    const std::int64_t slot = slice.slot(slice.own_place);
    auto* out = reinterpret_cast<float2*>(schedule.partial_out + slot * slice.n_columns * D);
    write_partial(out + slice.index * kLanes + slice.lane, mine.out);
    if (slice.lane == 0) {
      write_partial(
          reinterpret_cast<float2*>(schedule.partial_sums) + slot * slice.n_slices<D>() + slice.index,
          make_float2(mine.max, mine.sum));
    }
  }

  // Counts this CTA. The CTA's warps must need no further barrier to leave their parts of all slices that
  // share the counter.
  __device__ __forceinline__ MarkedResults(const Schedule& schedule, const SharedSlice& slice)
      : counter_(slice.counter_in<D>(schedule)),
        before_(slice.lane == 0 ? add_relaxed(counter_, 1) : -1),
        last_(slice.n - 1) {}

  // Combines all parts of a slice and, with `both`, of the next slice. Returns false and combines nothing if
  // this CTA was not the last to count. Only the first call of an object, which says so with `is_first`, can
  // return false. All lanes must call this function.
  __device__ __forceinline__ bool combine(const Schedule& schedule, const SharedSlice& slice, bool both,
                                          bool is_first, PartialResult (&result)[kTogether]) {
#pragma unroll
    for (PartialResult& of_slice : result) of_slice = {{0, 0}, kNoScore, 0};
#pragma unroll 1
    for (int begin = 0; begin < slice.n; begin += kPartsTogether) {
      MarkedParts<D> parts(schedule, slice, both, begin);
      // The loads have their code once, because small code matters more than one branch.
      do {
        parts.load();
        // The first loads overlap the counting.
        if (is_first && !is_last()) return false;
        is_first = false;
      } while (!parts.are_there());
#pragma unroll
      for (int s = 0; s < kTogether; ++s)
        if (s == 0 || both)
          take_in(result[s], slice.lane < parts.n ? parts.sum[s] : make_float2(kNoScore, 0), parts.out[s]);
      parts.take(slice.lane);
    }
    return true;
  }

 private:
  __device__ __forceinline__ bool is_last() const {
    if (before_ == last_) *counter_ = 0;
    return __any_sync(~0U, before_ == last_);
  }

  std::int32_t* counter_;
  int before_, last_;
};

}  // namespace kvant::cuda
