// Turns a warp's scores into weights relative to the largest score so far, tile by tile. When the running
// maximum rises, the accumulator is rescaled. Args is the kernel's argument type (DecodeArgs, ShortArgs), and
// the code uses its members `sas` and `softcap_log2`.
#pragma once

#include "device/cuda/common/ptx.cuh"
#include "device/cuda/decode/decode_args.h"
#include "device/cuda/decode/leave_segment.cuh"
#include "device/cuda/decode/sas.cuh"

namespace kvant::cuda {

// Says how a pair's kernels use SAS. Pairs that define no kSas never use it.
template <class Pair>
inline constexpr SasUse kSasUse = SasUse::never;
template <class Pair>
requires requires {
  Pair::kSas;
}
inline constexpr SasUse kSasUse<Pair> = Pair::kSas;

// Says whether a pair's kernels can cap scores. The argument softcap_log2 decides by a branch that all lanes
// take alike.
template <class Pair>
inline constexpr bool kCapsScores = false;
template <class Pair>
requires requires {
  Pair::kCaps;
}
inline constexpr bool kCapsScores<Pair> = Pair::kCaps;

// Replaces each score by cap * tanh(score / cap). The call must come before any score is masked.
template <class Pair, class Args, int Tiles>
__device__ __forceinline__ void cap_scores(const Args& args, float (&s)[Tiles][4]) {
  if constexpr (kCapsScores<Pair>) {
    if (args.softcap_log2 <= 0) return;
    const float inverse = 1 / args.softcap_log2;
#pragma unroll
    for (int tile = 0; tile < Tiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[tile][i] = args.softcap_log2 * tanhf(s[tile][i] * inverse);
    }
  }
}

// Turns the scores of some tiles into weights relative to the running maximum, which the scores may raise.
// Returns the sums of this lane's weights for heads 2t and 2t + 1.
template <class Pair, class Args, int D, int Tiles, class State>
__device__ __forceinline__ float2 online_softmax(const Args& args, float (&s)[Tiles][4], Accumulator<D>& acc,
                                                 State& state) {
  float top[2] = {s[0][0], s[0][1]};
#pragma unroll
  for (int tile = 0; tile < Tiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) top[i & 1] = fmaxf(top[i & 1], s[tile][i]);
  }
#pragma unroll
  for (int step = 4; step < 32; step *= 2) {
    top[0] = fmaxf(top[0], __shfl_xor_sync(~0U, top[0], step));
    top[1] = fmaxf(top[1], __shfl_xor_sync(~0U, top[1], step));
  }
  if (__any_sync(~0U, top[0] > acc.max[0] || top[1] > acc.max[1])) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float higher = fmaxf(acc.max[h], top[h]);
      const float factor = exp2_fast(acc.max[h] - higher);
      acc.max[h] = higher;
      acc.sum[h] *= factor;
      state.scale(h, factor);
#pragma unroll
      for (int tile = 0; tile < D / 16; ++tile) {
        acc.out[tile][h] *= factor;
        acc.out[tile][h + 2] *= factor;
      }
    }
  }
  float sum[2] = {0, 0};
  const auto weigh = [&](const auto& weight) {
#pragma unroll
    for (int tile = 0; tile < Tiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[tile][i] = weight(s[tile][i], i & 1);
        sum[i & 1] += s[tile][i];
      }
    }
  };
  constexpr SasUse kSas = kSasUse<Pair>;
  if (kSas == SasUse::always || (kSas == SasUse::on_request && args.sas != 0)) {
    const SasExponential exponential[2] = {SasExponential(acc.max[0]), SasExponential(acc.max[1])};
    weigh([&](float score, int h) { return exponential[h](score); });
  } else {
    const float base[2] = {acc.max[0] - kWeightBits, acc.max[1] - kWeightBits};
    weigh([&](float score, int h) { return exp2_fast(score - base[h]); });
  }
  acc.sum[0] += sum[0];
  acc.sum[1] += sum[1];
  return {sum[0], sum[1]};
}

// NoState serves pairs in which only the accumulator depends on the maximum.
struct NoState {
  __device__ void scale(int, float) {}
};

}  // namespace kvant::cuda
