// Holds trellis-coded pages (tcq<B>, src/format/tcq.cc) that are being sealed. TailPage has the values of a
// tail page, and TrellisPage is the page in shared memory with its means and gains. All searches for paths
// use both (seal_trellis.cuh, seal_pairs.cuh, seal_shaped.cuh).
#pragma once

#include "device/cuda/seal/seal_page.cuh"
#include "format/trellis_code.h"
#include "format/trellis_gain.h"
#include "format/trellis_parameters.h"

namespace kvant::cuda {

inline constexpr int kOctetValues = 8;  // values whose codes fill whole bytes

// Tells the compiler that i lies in [0, N), and returns i.
template <int N>
__device__ __forceinline__ int within(int i) {
  return static_cast<int>(static_cast<unsigned>(i) % N);
}

// Returns the power of 2^(1 / kGainSteps) that is nearest to `gain`, or 0 for 0. src/format/trellis_gain.h
// explains the steps.
__device__ __forceinline__ float rounded_gain(float gain) {
  return gain > 0 ? exp2f(rintf(kGainSteps * log2f(gain)) / kGainSteps) : 0;
}

// Returns of_keys or of_values, depending on the side. Both numbers are computed before the choice. Otherwise
// the compiler would emit a division if the result is a divisor.
__device__ __forceinline__ int of_side(PageSide side, int of_keys, int of_values) {
  return side == PageSide::key ? of_keys : of_values;
}

// Holds the values of a tail page, which stays in the L1 cache.
template <int D>
struct TailPage {
  const __nv_bfloat16* numbers;
  PageSide side;
  // ask_for_channels() loads eight neighbouring channels of a token, and ask_for_tokens() eight neighbouring
  // tokens of a channel, from a multiple of eight on in their stored form. Each side has its own branch, so
  // the distances between the eight numbers are compile-time constants.
  __device__ void ask_for_channels(int token, int channel, __nv_bfloat16 (&x)[kOctetValues]) const {
    const __nv_bfloat16* const from = at(token, channel);
    if (side == PageSide::key) {
#pragma unroll
      for (int i = 0; i < kOctetValues; ++i) x[i] = __ldg(from + plain_index(PageSide::key, D, 0, i));
    } else {
#pragma unroll
      for (int i = 0; i < kOctetValues; ++i) x[i] = __ldg(from + plain_index(PageSide::value, D, 0, i));
    }
  }
  __device__ void ask_for_tokens(int token, int channel, __nv_bfloat16 (&x)[kOctetValues]) const {
    const __nv_bfloat16* const from = at(token, channel);
    if (side == PageSide::key) {
#pragma unroll
      for (int i = 0; i < kOctetValues; ++i) x[i] = __ldg(from + plain_index(PageSide::key, D, i, 0));
    } else {
#pragma unroll
      for (int i = 0; i < kOctetValues; ++i) x[i] = __ldg(from + plain_index(PageSide::value, D, i, 0));
    }
  }
  __device__ void channels_from(int token, int channel, float (&x)[kOctetValues]) const {
    __nv_bfloat16 stored[kOctetValues];
    ask_for_channels(token, channel, stored);
#pragma unroll
    for (int i = 0; i < kOctetValues; ++i) x[i] = __bfloat162float(stored[i]);
  }

 private:
  __device__ __forceinline__ const __nv_bfloat16* at(int token, int channel) const {
    token = within<kPageTokens>(token);
    channel = within<D>(channel);
    // The first term of the sum is the same for all channels.
    return numbers +
           of_side(side, plain_index(PageSide::key, D, token, 0), plain_index(PageSide::value, D, token, 0)) +
           of_side(side, plain_index(PageSide::key, D, 0, channel),
                   plain_index(PageSide::value, D, 0, channel));
  }
};

// TrellisPage is the page that is being encoded in shared memory.
template <int Bits, int D>
struct alignas(16) TrellisPage {
  static constexpr int kCodeBytes = kPageTokens * D * Bits / 8;
  static constexpr int kPageBytes = round_up_16(kCodeBytes + trellis_parameter_bytes(D));
  unsigned char bytes[kPageBytes];
  float means[D];
  std::uint32_t left_out[kPageTokens / 32];
  float largest;       // largest gain
  float largest_mean;  // largest magnitude of a mean

  // begin() computes the channels' means, which are valid after the next __syncthreads(). finish() writes the
  // page. All threads of the CTA must call both.
  template <int Threads>
  __device__ void begin(const SealArgs& args, const SealUnit& unit, const DuePage& due,
                        const TailPage<D>& tail) {
    const auto thread = static_cast<int>(threadIdx.x);
    if (thread < kPageTokens / 32) left_out[thread] = left_out_tokens(args, unit, due, thread);
    if (thread == 0) largest = largest_mean = 0;
    if (thread < 4) reinterpret_cast<std::uint32_t*>(bytes)[kPageBytes / 4 - 4 + thread] = 0;
    __syncthreads();
    store_means<Threads>(tail);
  }

  // Stores the codes of 8 values from channel `octet` on. Each code has Bits bits.
  __device__ void store_codes(PageSide side, int token, int octet, std::uint64_t codes) {
    constexpr CodeLayout kLayout{CodeOrder::trellis, Bits, 1};
#pragma unroll
    for (int i = 0; i < Bits; ++i) {
      const int bit = of_side(
          side, code_bit(kLayout, PageSide::key, D, within<kPageTokens>(token), within<D>(octet), 8 * i),
          code_bit(kLayout, PageSide::value, D, within<kPageTokens>(token), within<D>(octet), 8 * i));
      bytes[bit / 8] = static_cast<unsigned char>(codes >> (8 * i));
    }
  }

  // Returns whether a token contributes to the page, because it is not left out.
  __device__ bool keeps(int token) const {
    return (left_out[token / 32] >> (token % 32) & 1) == 0;
  }

  // note_gain() records the gain of a token. Once all gains are recorded, and after __syncthreads(),
  // store_gain() stores each gain as a power of 2^(-1/32) relative to the largest gain.
  __device__ void note_gain(int token, float gain) {
    // Gains are not negative, so their bits compare like integers.
    if (keeps(token)) atomicMax(reinterpret_cast<int*>(&largest), __float_as_int(gain));
  }
  __device__ void store_gain(int token, float gain) {
    const float loudest = largest;
    const bool silent = !(gain > 0) || !(loudest > 0);
    parameters()[token] = silent
                              ? kSilent
                              : static_cast<unsigned char>(fminf(
                                    fmaxf(rintf(kGainSteps * (log2f(loudest) - log2f(gain))), 0), kSilent));
    if (token == 0) *reinterpret_cast<float*>(parameters() + trellis_loudest_at(D)) = loudest;
  }

  // Writes the page to its destination. All threads of the CTA must call this function, because it contains a
  // barrier.
  template <int Threads>
  __device__ void finish(const SealArgs& args, const SealUnit& unit, const DuePage& due) {
    __syncthreads();
    count_if_out_of_range(args, unit, due, args.sides[unit.side], D, parameters());
    for (int i = static_cast<int>(threadIdx.x); i < kPageBytes / 16; i += Threads)
      reinterpret_cast<uint4*>(due.sealed)[i] = reinterpret_cast<const uint4*>(bytes)[i];
  }

 private:
  __device__ unsigned char* parameters() {
    return bytes + kCodeBytes;
  }

  template <int Threads>
  __device__ void store_means(const TailPage<D>& tail) {
    const auto thread = static_cast<int>(threadIdx.x);
    constexpr int kAtOnce = D < 2 * Threads ? 1 : 2;
    float own = 0;
#pragma unroll 1
    for (int channel = thread; channel < D; channel += kAtOnce * Threads) {
      float of_channels[kAtOnce];
      find_means<Threads>(tail, channel, of_channels);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        means[channel + i * Threads] = of_channels[i];
        own = fmaxf(own, fabsf(of_channels[i]));
      }
    }
    // Magnitudes are not negative, so their bits compare like integers.
    const int largest_of_warp = __reduce_max_sync(~0U, __float_as_int(own));
    if (thread % kLanes == 0) atomicMax(reinterpret_cast<int*>(&largest_mean), largest_of_warp);
    __syncthreads();
    const __nv_bfloat16 stored = __float2bfloat16_rn(step_of_means(largest_mean));
    const float step = __bfloat162float(stored), reciprocal = step > 0 ? 1 / step : 0;
    if (thread == 0) *reinterpret_cast<__nv_bfloat16*>(parameters() + trellis_step_at(D)) = stored;
#pragma unroll 1
    for (int channel = thread; channel < D; channel += Threads) {
      const int code = code_of_mean(means[channel], reciprocal, [](float x) { return rintf(x); });
      parameters()[kTrellisMeansAt + channel] = static_cast<unsigned char>(code);
      means[channel] = static_cast<float>(code) * step;
    }
  }

  // Finds the means of `channel` and of N - 1 more channels at steps of Distance, over the tokens that are
  // not left out.
  template <int Distance, int N>
  __device__ void find_means(const TailPage<D>& tail, int channel, float (&found)[N]) const {
    double sums[N] = {};
    int n = 0;
    constexpr int kOctets = 8 / N;  // octets that the thread loads together
#pragma unroll 1
    for (int first = 0; first < kPageTokens; first += kOctets * kOctetValues) {
      __nv_bfloat16 x[kOctets][N][kOctetValues];
#pragma unroll
      for (int octet = 0; octet < kOctets; ++octet)
#pragma unroll
        for (int i = 0; i < N; ++i)
          tail.ask_for_tokens(first + octet * kOctetValues, channel + i * Distance, x[octet][i]);
#pragma unroll
      for (int octet = 0; octet < kOctets; ++octet) {
        const int token = first + octet * kOctetValues;
        const std::uint32_t of_octet = left_out[token / 32] >> (token % 32);
#pragma unroll
        for (int j = 0; j < kOctetValues; ++j) {
          if ((of_octet >> j & 1) != 0) continue;
#pragma unroll
          for (int i = 0; i < N; ++i) sums[i] += static_cast<double>(__bfloat162float(x[octet][i][j]));
        }
        n += kOctetValues - __popc(of_octet & 0xff);
      }
    }
#pragma unroll
    for (int i = 0; i < N; ++i) found[i] = n > 0 ? static_cast<float>(sums[i] / n) : 0;
  }
};

// Seals the page of a CTA, whose Threads threads must all call this function. Thread i has token i and the
// tokens at multiples of Threads after token i. prepare() computes what encode() needs in addition to the
// means. encode(tail, gains) writes the codes and the gains of the thread's tokens.
template <int Threads, int Bits, int D, class Prepare, class Encode>
__device__ __forceinline__ void seal_due_page(const SealArgs& args, TrellisPage<Bits, D>& page,
                                              const Prepare& prepare, const Encode& encode) {
  constexpr int kTokens = kPageTokens / Threads;
  const SealLaunch launch(args);
  const SealUnit& unit = args.units[blockIdx.y];
  const auto thread = static_cast<int>(threadIdx.x);
  DuePage due;
  if (!find_due_page(args, unit, blockIdx.x, &due)) return;
  const TailPage<D> tail{reinterpret_cast<const __nv_bfloat16*>(due.tail), static_cast<PageSide>(unit.side)};
  page.template begin<Threads>(args, unit, due, tail);
  prepare();
  __syncthreads();
  float gains[kTokens];
  encode(tail, gains);
#pragma unroll
  for (int i = 0; i < kTokens; ++i) page.note_gain(thread + i * Threads, gains[i]);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kTokens; ++i) page.store_gain(thread + i * Threads, gains[i]);
  page.template finish<Threads>(args, unit, due);
}

}  // namespace kvant::cuda
