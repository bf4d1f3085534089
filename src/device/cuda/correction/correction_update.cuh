// Adds sealed pages to correction states: S += phi(e)^T v and z += phi(e), where e is the rounding error of
// the key and v the rounded value. The kernel first sums over a page and then adds the result to the state,
// which keeps sums over many pages accurate. A CTA computes one of the two softmaxes, which is half of a KV
// head's features.
#pragma once

#include <cuda_bf16.h>

#include "device/cuda/common/architecture.cuh"
#include "device/cuda/correction/correction.h"
#include "device/cuda/correction/feature_softmax.cuh"
#include "device/cuda/seal/seal_page.cuh"

namespace kvant::cuda {

inline constexpr int kUpdateThreads = 256;
inline constexpr int kUpdateParts = kUpdateThreads / kHalfFeatures;  // threads for each feature

// GPUs with little shared memory process this many tokens at a time.
inline constexpr int kFewTokens = 32;

// Holds the shared memory of a CTA for `Tokens` tokens of a page.
template <int D, int Tokens>
struct StateUpdateShared {
  float rows[Tokens][D];  // [token][channel], first errors of keys, then values
  float phi[Tokens][kHalfFeatures];
};

// Decodes a value of a page with uniform grids by channel or by token.
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

// Returns whether a token is left out of the sums, because it lies in the sink or is masked.
__device__ inline bool left_out(const StateUpdateArgs& args, int seq, int head, int page, int token) {
  if (page == 0 && token < args.sink) return true;
  if (args.masks == nullptr) return false;
  const auto* words = reinterpret_cast<const std::uint32_t*>(args.masks + seq * args.mask_seq_stride +
                                                             head * args.mask_head_stride + page);
  return (words[token / 32] >> (token % 32) & 1) != 0;
}

// Describes the work of a thread, which computes one feature. Two threads have the same feature, and divide
// first the tokens and then the channels between them.
struct StateUpdate {
  int seq, head, half;
  int feature;  // index within half of the features
  int part;

  __device__ int of_all() const { return half * kHalfFeatures + feature; }
};

// Computes the features of every token of shared.rows, and zeros for tokens that are left out. `map` is the
// feature's column of the maps.
template <int D, int Tokens>
__device__ void map_errors(const StateUpdateArgs& args, const StateUpdate& of, int page, int first_token,
                           const float (&map)[D], StateUpdateShared<D, Tokens>& shared) {
  constexpr int kTogether = 8;  // tokens of one round
  constexpr int kOfPart = Tokens / kUpdateParts;
  static_assert(kOfPart % kTogether == 0);
#pragma unroll 1
  for (int first = of.part * kOfPart; first < (of.part + 1) * kOfPart; first += kTogether) {
    float sum[kTogether] = {};
#pragma unroll
    for (int i = 0; i < D; i += 4) {
#pragma unroll
      for (int token = 0; token < kTogether; ++token) {
        const float4 x = *reinterpret_cast<const float4*>(&shared.rows[first + token][i]);
        sum[token] += x.x * map[i] + x.y * map[i + 1] + x.z * map[i + 2] + x.w * map[i + 3];
      }
    }
#pragma unroll
    for (int token = 0; token < kTogether; ++token) shared.phi[first + token][of.feature] = sum[token];
  }
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kLanes;
  for (int token = thread / kLanes; token < Tokens; token += kUpdateThreads / kLanes) {
    float* phi = shared.phi[token];
    float x[kHalfFeatures / kLanes];
    for (int i = 0; i < kHalfFeatures / kLanes; ++i) x[i] = phi[lane + i * kLanes];
    softmax_of_warp(x);
    const bool counts = !left_out(args, of.seq, of.head, page, first_token + token);
    for (int i = 0; i < kHalfFeatures / kLanes; ++i) phi[lane + i * kLanes] = counts ? x[i] : 0;
  }
  __syncthreads();
}

__device__ __forceinline__ float4 sum_of(float4 a, float4 b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

// Adds the sums over some tokens of a page, from first_token on. `nth` is the page's index among the
// sequence's pages that are sealed now. If `put` is true, the state is still empty and is overwritten.
template <int D, int Tokens>
__device__ void add_tokens_to_state(const StateUpdateArgs& args, const StateUpdate& of, int nth,
                                    int first_token, const float (&map)[D], float* state, bool put,
                                    StateUpdateShared<D, Tokens>& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  const int target = args.due.sealed_page[of.seq] + nth;
  const auto* tail = reinterpret_cast<const __nv_bfloat16*>(
      args.tail.find(of.seq, of.head, 0, args.due.tail_page[of.seq] + nth));
  const unsigned char* keys = args.sealed.find(of.seq, of.head, 0, target);
#pragma unroll 4
  for (int i = thread; i < Tokens * D; i += kUpdateThreads) {
    const int token = first_token + i / D;
    shared.rows[i / D][i % D] = __bfloat162float(tail[plain_index(PageSide::key, D, token, i % D)]) -
                                decode_uniform<D>(keys, args.stored[0], PageSide::key, token, i % D);
  }
  __syncthreads();
  map_errors(args, of, target, first_token, map, shared);
  const unsigned char* values = args.sealed.find(of.seq, of.head, 1, target);
#pragma unroll 4
  for (int i = thread; i < Tokens * D; i += kUpdateThreads)
    shared.rows[i / D][i % D] =
        decode_uniform<D>(values, args.stored[1], PageSide::value, first_token + i / D, i % D);
  __syncthreads();
  constexpr int kTogether = 16;  // channels of one round
  constexpr int kOfPart = D / kUpdateParts;
  static_assert(kOfPart % kTogether == 0);
#pragma unroll 1
  for (int first = of.part * kOfPart; first < (of.part + 1) * kOfPart; first += kTogether) {
    float sum[kTogether] = {};
    float mass = 0;
#pragma unroll 4
    for (int token = 0; token < Tokens; ++token) {
      const float phi = shared.phi[token][of.feature];
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
    auto* to = reinterpret_cast<float4*>(state + of.of_all() * D + first);
#pragma unroll
    for (int c = 0; c < kTogether; c += 4) {
      const float4 more = {sum[c], sum[c + 1], sum[c + 2], sum[c + 3]};
      to[c / 4] = put ? more : sum_of(to[c / 4], more);
    }
    if (first == 0) {
      float& z = state[kFeatures * D + of.of_all()];
      z = (put ? 0 : z) + mass;
    }
  }
}

// Adds pages to states. The grid is [pages][halves of KV heads][sequences], with only one page unless each
// page has sums of its own.
template <int D>
__global__ void __launch_bounds__(kUpdateThreads)
    update_states_kernel(const __grid_constant__ StateUpdateArgs args) {
  extern __shared__ __align__(16) unsigned char bytes[];
  constexpr int kTokens = Architecture::kLargeSharedMemory ? kPageTokens : kFewTokens;
  auto& shared = *reinterpret_cast<StateUpdateShared<D, kTokens>*>(bytes);
  const auto thread = static_cast<int>(threadIdx.x);
  const StateUpdate of{static_cast<int>(blockIdx.x), args.heads.at[blockIdx.y / 2],
                       static_cast<int>(blockIdx.y) % 2, thread % kHalfFeatures, thread / kHalfFeatures};
  const int n_due = pages_due(args.due, of.seq);
  if (static_cast<int>(blockIdx.z) >= n_due) return;
  const float* column =
      args.key_maps + (std::int64_t{2} * of.head + of.half) * D * kHalfFeatures + of.feature;
  float map[D];
#pragma unroll
  for (int i = 0; i < D; ++i) map[i] = __ldg(column + i * kHalfFeatures);
  float* const before = args.states.at(of.seq, of.head);
#pragma unroll 1
  for (auto nth = static_cast<int>(blockIdx.z); nth < n_due; nth += static_cast<int>(gridDim.z)) {
    float* state = before + (nth + 1) * args.page_stride;
#pragma unroll 1
    for (int first = 0; first < kPageTokens; first += kTokens) {
      add_tokens_to_state(args, of, nth, first, map, state, args.page_stride != 0 && first == 0, shared);
      __syncthreads();
    }
  }
}

// Turns sums of single pages into sums over all pages up to each page. The grid is [KV
// heads][sequences][pieces of a state].
template <int D>
__global__ void __launch_bounds__(kUpdateThreads)
    add_up_states_kernel(const __grid_constant__ StateUpdateArgs args) {
  const auto i = static_cast<int>(blockIdx.x * kUpdateThreads + threadIdx.x);
  const int seq = static_cast<int>(blockIdx.y), head = args.heads.at[blockIdx.z];
  if (i >= kFeatures * (D + 1) / 4) return;
  auto* place = reinterpret_cast<float4*>(args.states.at(seq, head)) + i;
  float4 sum = *place;
  for (int n = pages_due(args.due, seq); n > 0; --n) {
    place += args.page_stride / 4;
    sum = sum_of(sum, *place);
    *place = sum;
  }
}

}  // namespace kvant::cuda
