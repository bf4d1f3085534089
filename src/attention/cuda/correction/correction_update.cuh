// Adds a page to a correction state when it has been sealed: S += phi(e)^T v and z += phi(e), with e what the
// key's rounding took and v the rounded values. A CTA is one sequence and KV head; a page is summed by itself
// before it is added, so that sums over many pages stay good.
#pragma once

#include <cuda_bf16.h>

#include "attention/cuda/correction/correction.h"
#include "attention/cuda/correction/feature_softmax.cuh"
#include "attention/cuda/device/architecture.cuh"
#include "attention/cuda/seal/seal_page.cuh"

namespace kvant::cuda {

struct StateUpdateArgs {
  SealArgs seal;
  const float* key_maps;
  CorrectionStates states;
};

inline constexpr int kUpdateThreads = kFeatures;

inline constexpr int kFewTokens = 32;  // where shared memory may be small

// Of so many of a page's tokens at a time.
template <int D, int Tokens>
struct StateUpdateShared {
  float rows[Tokens][D];  // errors of keys, then values
  float phi[Tokens][kFeatures];
};

// A value of a page with uniform grids, channel-wise (keys) or token-wise (values).
template <int D>
__device__ float decode_uniform(const unsigned char* page, const PageFormat& format, PageSide side, int token,
                                int channel) {
  const auto code = static_cast<float>(
      load_code<D>(reinterpret_cast<const std::uint32_t*>(page), format.layout, side, token, channel));
  const bool by_token = format.grid == GridAxis::of_tokens;
  const int grid =
      by_token ? token * format.groups(D) + channel / format.group : token / format.group * D + channel;
  const int n_grids = by_token ? kPageTokens * format.groups(D) : kPageTokens / format.group * D;
  const auto* scales = reinterpret_cast<const __half*>(page + code_bytes(format.layout, D));
  const float scale = __half2float(scales[grid]);
  const int bits = format.layout.bits;
  if (format.symmetric)
    return (bits == 1 ? 2 * code - 1 : code - static_cast<float>(1 << (bits - 1))) * scale;
  return code * scale + __half2float(scales[n_grids + grid]);
}

// The row of features of every token of `rows`; this thread's is column `feature`.
template <int D, int Tokens>
__device__ void map_errors(StateUpdateShared<D, Tokens>& shared, const float* maps, int feature) {
  constexpr int kTogether = 16;  // tokens
  const float* map = maps + feature / kHalfFeatures * D * kHalfFeatures + feature % kHalfFeatures;
  for (int first = 0; first < Tokens; first += kTogether) {
    float sum[kTogether] = {};
    for (int i = 0; i < D; i += 4) {
      float w[4];
      for (int j = 0; j < 4; ++j) w[j] = map[(i + j) * kHalfFeatures];
#pragma unroll
      for (int token = 0; token < kTogether; ++token) {
        const float4 x = *reinterpret_cast<const float4*>(&shared.rows[first + token][i]);
        sum[token] += x.x * w[0] + x.y * w[1] + x.z * w[2] + x.w * w[3];
      }
    }
#pragma unroll
    for (int token = 0; token < kTogether; ++token) shared.phi[first + token][feature] = sum[token];
  }
  __syncthreads();
  const int lane = feature % kLanes;
  for (int row = feature / kLanes; row < 2 * Tokens; row += kUpdateThreads / kLanes) {
    float* half = &shared.phi[row / 2][row % 2 * kHalfFeatures];
    float x[kHalfFeatures / kLanes];
    for (int i = 0; i < kHalfFeatures / kLanes; ++i) x[i] = half[lane + i * kLanes];
    softmax_of_warp(x);
    for (int i = 0; i < kHalfFeatures / kLanes; ++i) half[lane + i * kLanes] = x[i];
  }
  __syncthreads();
}

__device__ inline bool left_out(const SealArgs& args, int seq, int head, int page, int token) {
  if (page == 0 && token < args.sink) return true;
  if (args.masks == nullptr) return false;
  const auto* words = reinterpret_cast<const std::uint32_t*>(args.masks + seq * args.mask_seq_stride +
                                                             head * args.mask_head_stride + page);
  return (words[token / 32] >> (token % 32) & 1) != 0;
}

// Some tokens of a page, from first_token on. nth: of the sequence's pages that are sealed.
template <int D, int Tokens>
__device__ void add_tokens_to_state(const StateUpdateArgs& args, int seq, int head, int nth, int first_token,
                                    StateUpdateShared<D, Tokens>& shared) {
  const SealArgs& seal = args.seal;
  const int thread = threadIdx.x;
  const int target = seal.due.sealed_page[seq] + nth;
  const auto* tail =
      reinterpret_cast<const __nv_bfloat16*>(seal.tail.find(seq, head, 0, seal.due.tail_page[seq] + nth));
  const unsigned char* keys = seal.sealed.find(seq, head, 0, target);
  for (int i = thread; i < Tokens * D; i += kUpdateThreads) {
    const int token = first_token + i / D;
    shared.rows[i / D][i % D] = __bfloat162float(tail[plain_index(PageSide::key, D, token, i % D)]) -
                                decode_uniform<D>(keys, seal.sides[0].stored, PageSide::key, token, i % D);
  }
  __syncthreads();
  map_errors(shared, args.key_maps + static_cast<std::int64_t>(head) * D * kFeatures, thread);
  const unsigned char* values = seal.sealed.find(seq, head, 1, target);
  for (int i = thread; i < Tokens * D; i += kUpdateThreads)
    shared.rows[i / D][i % D] =
        decode_uniform<D>(values, seal.sides[1].stored, PageSide::value, first_token + i / D, i % D);
  __syncthreads();
  float* state = args.states.at(seq, head);
  constexpr int kTogether = 16;  // channels
  for (int first = 0; first < D; first += kTogether) {
    float sum[kTogether] = {};
    float mass = 0;
    for (int token = 0; token < Tokens; ++token) {
      if (left_out(seal, seq, head, target, first_token + token)) continue;
      const float phi = shared.phi[token][thread];
      mass += phi;
#pragma unroll
      for (int c = 0; c < kTogether; c += 4) {
        const float4 v = *reinterpret_cast<const float4*>(&shared.rows[token][first + c]);
        sum[c] += phi * v.x;
        sum[c + 1] += phi * v.y;
        sum[c + 2] += phi * v.z;
        sum[c + 3] += phi * v.w;
      }
    }
    for (int c = 0; c < kTogether; ++c) state[thread * D + first + c] += sum[c];
    if (first == 0) state[kFeatures * D + thread] += mass;
  }
}

template <int D>
__global__ void __launch_bounds__(kUpdateThreads)
    update_states_kernel(const __grid_constant__ StateUpdateArgs args) {
  extern __shared__ __align__(16) unsigned char bytes[];
  constexpr int kTokens = Architecture::kLargeSharedMemory ? kPageTokens : kFewTokens;
  auto& shared = *reinterpret_cast<StateUpdateShared<D, kTokens>*>(bytes);
  const int seq = blockIdx.x;
  const int head = args.seal.heads.at[blockIdx.y];
  for (int nth = 0; nth < pages_due(args.seal, seq); ++nth) {
    for (int first = 0; first < kPageTokens; first += kTokens) {
      add_tokens_to_state(args, seq, head, nth, first, shared);
      __syncthreads();
    }
  }
}

}  // namespace kvant::cuda
