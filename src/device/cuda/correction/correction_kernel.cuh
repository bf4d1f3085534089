// Computes KVLinC's correction of a decode step. One kernel computes the features phi(q) of the queries. A
// second kernel multiplies phi(q) with the states S and z of the sequences. The decode kernel adds the
// products to its sums.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "device/cuda/common/ptx.cuh"
#include "device/cuda/correction/correction.h"
#include "device/cuda/correction/feature_softmax.cuh"

namespace kvant::cuda {

inline constexpr int kMapThreads = 1024;
// A CTA reads a query head's maps once for this many sequences.
inline constexpr int kMapSeqs = 8;

// Computes phi(q) of one query head for every gridDim.y-th block of kMapSeqs sequences. A thread multiplies a
// quarter of the channels by one column of the maps, which stays in the thread's registers.
template <int D>
__global__ void __launch_bounds__(kMapThreads)
    map_queries_kernel(const __grid_constant__ CorrectionArgs args) {
  constexpr int kSlices = kMapThreads / kFeatures;
  constexpr int kChannels = D / kSlices;
  __shared__ __align__(16) float q[kMapSeqs][D];
  __shared__ float parts[kSlices][kMapSeqs][kFeatures];
  const int head = blockIdx.x;
  const int thread = threadIdx.x;
  const int feature = thread % kFeatures;
  const int slice = thread / kFeatures;
  const float* map = args.query_maps +
                     (static_cast<std::int64_t>(head) * 2 + feature / kHalfFeatures) * D * kHalfFeatures +
                     slice * kChannels * kHalfFeatures + feature % kHalfFeatures;
  // The maps are constants that no predecessor writes, so they are loaded before predecessors finish.
  float weights[kChannels];
#pragma unroll
  for (int i = 0; i < kChannels; ++i) weights[i] = __ldg(map + i * kHalfFeatures);
  wait_for_predecessors();
  admit_successors();
  for (int first = blockIdx.y * kMapSeqs; first < args.n_seqs; first += gridDim.y * kMapSeqs) {
    const int n_seqs = min(kMapSeqs, args.n_seqs - first);
    for (int i = thread; i < n_seqs * D; i += kMapThreads) {
      const std::int64_t at = (first + i / D) * args.q_seq_stride + head * args.q_head_stride + i % D;
      q[i / D][i % D] = args.q_type == NumberType::f32 ? static_cast<const float*>(args.q)[at]
                        : args.q_type == NumberType::f16
                            ? __half2float(static_cast<const __half*>(args.q)[at])
                            : __bfloat162float(static_cast<const __nv_bfloat16*>(args.q)[at]);
    }
    __syncthreads();
#pragma unroll 1
    for (int s = 0; s < n_seqs; ++s) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kChannels; i += 4) {
        const float4 x = *reinterpret_cast<const float4*>(&q[s][slice * kChannels + i]);
        sum += x.x * weights[i] + x.y * weights[i + 1] + x.z * weights[i + 2] + x.w * weights[i + 3];
      }
      parts[slice][s][feature] = sum;
    }
    __syncthreads();
    // Each warp computes one of the softmaxes.
    const int s = thread / kLanes / 2;
    if (s >= n_seqs) continue;
    float* features =
        args.features +
        ((first + s) * static_cast<std::int64_t>(args.n_kv_heads) * args.group + head) * kFeatures;
    float x[kHalfFeatures / kLanes];
    const int first_feature = thread / kLanes % 2 * kHalfFeatures + thread % kLanes;
    for (int i = 0; i < kHalfFeatures / kLanes; ++i) {
      x[i] = 0;
      for (int part = 0; part < kSlices; ++part) x[i] += parts[part][s][first_feature + i * kLanes];
    }
    softmax_of_warp(x);
    for (int i = 0; i < kHalfFeatures / kLanes; ++i) features[first_feature + i * kLanes] = x[i];
  }
}

inline constexpr int kStateThreads = 256;
inline constexpr int kStateChannels = 32;  // channels of S for each CTA

// Holds the shared memory of a CTA for `Heads` query heads.
template <int Heads>
struct StateShared {
  float4 phi[Heads][kFeatures / 4];
  float z[kFeatures];
  float4 sums[kStateThreads / kLanes][Heads][kStateChannels / 4];  // [warp][query head][column of 4 channels]
};

__device__ __forceinline__ float4 fma4(float a, float4 b, float4 c) {
  return {fmaf(a, b.x, c.x), fmaf(a, b.y, c.y), fmaf(a, b.z, c.z), fmaf(a, b.w, c.w)};
}

// Holds a thread's part of S, which is 4 channels of kRows rows. Neighbouring threads have neighbouring
// channels of a row.
struct StateRows {
  static constexpr int kColumns = kStateChannels / 4;                 // threads for a row
  static constexpr int kRows = kFeatures * kColumns / kStateThreads;  // rows for a thread
  static_assert(kStateThreads == kFeatures && kRows == 8);
  float4 s[kRows];

  // Loads the thread's part. `state` points to the CTA's first channel of S [kFeatures][D].
  template <int D>
  __device__ __forceinline__ void load(const float* state, int thread) {
    const auto* rows = reinterpret_cast<const float4*>(state) + thread % kColumns;
#pragma unroll
    for (int i = 0; i < kRows; ++i) s[i] = __ldcs(rows + (thread / kColumns * kRows + i) * (D / 4));
  }
  // Computes phi(q) S of n_heads query heads over the rows of each warp, and stores the sums in shared.sums.
  template <int Heads>
  __device__ __forceinline__ void multiply(StateShared<Heads>& shared, int n_heads, int thread) const {
    // With many query heads, full unrolling would take too many registers.
    constexpr int kUnrolled = Heads > kPaddedGroup ? 2 : Heads;
#pragma unroll kUnrolled
    for (int h = 0; h < Heads; ++h) {
      if (h >= n_heads) break;
      float4 sum = {0, 0, 0, 0};
#pragma unroll
      for (int i = 0; i < kRows; i += 4) {
        const float4 phi = shared.phi[h][thread / kColumns * (kRows / 4) + i / 4];
        sum = fma4(phi.x, s[i], sum);
        sum = fma4(phi.y, s[i + 1], sum);
        sum = fma4(phi.z, s[i + 2], sum);
        sum = fma4(phi.w, s[i + 3], sum);
      }
      for (int step = kColumns; step < kLanes; step *= 2) {
        sum.x += __shfl_xor_sync(~0U, sum.x, step);
        sum.y += __shfl_xor_sync(~0U, sum.y, step);
        sum.z += __shfl_xor_sync(~0U, sum.z, step);
        sum.w += __shfl_xor_sync(~0U, sum.w, step);
      }
      if (thread % kLanes < kColumns) shared.sums[thread / kLanes][h][thread % kColumns] = sum;
    }
  }
};

// Loads phi(q) of a group's query heads into shared memory, from head first_head on. The heads are
// contiguous.
template <int Heads>
__device__ __forceinline__ void load_features(StateShared<Heads>& shared, int first_head, const float* from,
                                              int group, int thread) {
  const auto* features = reinterpret_cast<const float4*>(from);
  for (int i = thread; i < group * (kFeatures / 4); i += kStateThreads)
    shared.phi[first_head + i / (kFeatures / 4)][i % (kFeatures / 4)] = features[i];
}

// Returns the sum over all warps for query head `h` and a column of 4 channels.
template <int Heads>
__device__ __forceinline__ float4 sum_of_warps(const StateShared<Heads>& shared, int h, int column) {
  float4 total = {0, 0, 0, 0};
  for (int warp = 0; warp < kStateThreads / kLanes; ++warp)
    total = fma4(1, shared.sums[warp][h][column], total);
  return total;
}

// Returns phi(q) z of query head `h`. One warp calls this function.
template <int Heads>
__device__ __forceinline__ float sum_of_features(const StateShared<Heads>& shared, int h, int lane) {
  const auto* phi = reinterpret_cast<const float*>(shared.phi[h]);
  float sum = 0;
  for (int f = lane; f < kFeatures; f += kLanes) sum += phi[f] * shared.z[f];
  for (int step = 1; step < kLanes; step *= 2) sum += __shfl_xor_sync(~0U, sum, step);
  return sum;
}

// Computes phi(q) S and phi(q) z for a sequence, a KV head and kStateChannels channels. A thread multiplies 8
// features' rows of S (StateRows). A CTA loads its whole share of S before the features are ready. The early
// load is safe, because all kernels before map_queries_kernel have finished.
template <int D>
__global__ void __launch_bounds__(kStateThreads)
    read_states_kernel(const __grid_constant__ CorrectionArgs args) {
  __shared__ StateShared<kPaddedGroup> shared;
  const int thread = threadIdx.x;
  const int kv_head = blockIdx.x / (D / kStateChannels);
  const int first_channel = blockIdx.x % (D / kStateChannels) * kStateChannels;
  const int seq = blockIdx.y;
  const std::int64_t first_query = (static_cast<std::int64_t>(seq) * args.n_kv_heads + kv_head) * args.group;
  const float* state = args.states.at(seq, kv_head);
  StateRows rows;
  rows.load<D>(state + first_channel, thread);
  if (first_channel == 0) shared.z[thread] = state[kFeatures * D + thread];
  wait_for_predecessors();
  admit_successors();
  load_features(shared, 0, args.features + first_query * kFeatures, args.group, thread);
  __syncthreads();
  rows.multiply(shared, args.group, thread);
  __syncthreads();
  const int h = thread / kLanes;
  const int lane = thread % kLanes;
  if (h >= args.group) return;
  if (lane < StateRows::kColumns)
    reinterpret_cast<float4*>(args.numerator + (first_query + h) * D + first_channel)[lane] =
        sum_of_warps(shared, h, lane);
  if (first_channel == 0) {
    const float sum = sum_of_features(shared, h, lane);
    if (lane == 0) args.denominator[first_query + h] = sum;
  }
}

}  // namespace kvant::cuda
