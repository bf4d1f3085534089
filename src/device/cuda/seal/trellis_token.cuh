// TrellisToken is a token of a trellis-coded page that is being sealed. The class converts the token's values
// to levels for a search, and converts the path that the search finds to codes and a gain.
#pragma once

#include "device/cuda/seal/trellis_levels.cuh"
#include "device/cuda/seal/trellis_page.cuh"

namespace kvant::cuda {

template <int Bits, int D>
class TrellisToken {
 public:
  static constexpr TrellisCode kCode = kTrellisCodes[Bits - 1];

  static __device__ __forceinline__ float shape_of(int state) {
    return static_cast<float>(level_of_state<Bits>(state)) * kCode.scale;
  }

  // page.begin() must have run before.
  __device__ TrellisToken(TrellisPage<Bits, D>& page, const TailPage<D>& tail, int token)
      : page_(page), tail_(tail), token_(token) {
    float squares = 0, largest = 0;
#pragma unroll 8
    for (int i = 0; i < D; i += kOctetValues) {
      float x[kOctetValues];
      rests_from(i, x);
#pragma unroll
      for (const float value : x) {
        squares += value * value;
        largest = fmaxf(largest, fabsf(value));
      }
    }
    const float loudness = rounded_gain(sqrtf(squares / D));
    to_levels_ = loudness > 0 ? 1 / (loudness * kCode.scale) : 0;
    energy_ = squares;
    largest_ = largest * to_levels_;
  }

  // Returns the largest magnitude of the token's values, in levels.
  __device__ __forceinline__ float largest() const {
    return largest_;
  }

  // An Octet holds eight values from a multiple of eight on, as a tail page stores them. ask_for() loads an
  // octet, and in_levels() converts its values to levels.
  using Octet = __nv_bfloat16[kOctetValues];
  __device__ __forceinline__ void ask_for(int first, Octet& x) const {
    tail_.ask_for_channels(token_, first, x);
  }
  __device__ __forceinline__ void in_levels(int first, const Octet& stored, float (&x)[kOctetValues]) const {
#pragma unroll
    for (int i = 0; i < kOctetValues; ++i)
      x[i] = (__bfloat162float(stored[i]) - page_.means[first + i]) * to_levels_;
  }
  // Returns value i of the current octet, in levels.
  __device__ __forceinline__ float octet_in_levels(int i) const {
    return octet_[i] * to_levels_;
  }

  // Codes are processed from the last value to the first, one octet at a time. An octet is loaded while the
  // octet before it is processed. ask_for_first() names the first octet, and begin_octet() names the next
  // octet to load.
  __device__ __forceinline__ void ask_for_first(int octet) {
    ask_for(octet, ahead_);
  }
  __device__ __forceinline__ void begin_octet(int first, int next) {
#pragma unroll
    for (int i = 0; i < kOctetValues; ++i) octet_[i] = __bfloat162float(ahead_[i]) - page_.means[first + i];
    ask_for(next, ahead_);
    codes_ = 0;
  }
  // Records the state of value `i` of the current octet. `shape` is the value of this state at a gain of 1.
  __device__ __forceinline__ void take_state(int i, unsigned state, float shape) {
    codes_ |= static_cast<std::uint64_t>(state >> (kTrellisBits - Bits)) << (i * Bits);
    along_ += octet_[i] * shape;
    length_ += shape * shape;
  }
  __device__ __forceinline__ void end_octet(int first) {
    page_.store_codes(tail_.side, token_, first, codes_);
  }

  // Returns the gain for the recorded states.
  __device__ float gain() const {
    const float share = tail_.side == PageSide::key ? kUnbiasedKeys : kUnbiasedValues;
    const float gain = fitted_gain(energy_, along_, length_, share,
                                   [](float base, float exponent) { return powf(base, exponent); });
    return fminf(rounded_gain(gain), 0x1p126F);
  }

 private:
  __device__ __forceinline__ void rests_from(int i, float (&x)[kOctetValues]) const {
    tail_.channels_from(token_, i, x);
#pragma unroll
    for (int j = 0; j < kOctetValues; ++j) x[j] -= page_.means[i + j];
  }

  TrellisPage<Bits, D>& page_;
  const TailPage<D>& tail_;
  int token_;
  float to_levels_, energy_, largest_;
  float along_ = 0, length_ = 0;
  Octet ahead_;
  float octet_[kOctetValues];
  std::uint64_t codes_;
};

}  // namespace kvant::cuda
