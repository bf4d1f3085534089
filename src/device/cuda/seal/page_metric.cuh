// Computes the metric for errors of keys that rotates with the page (src/format/page_metric.h) when a page is
// sealed. The metric depends on the page's position, so the host cannot prepare it.
#pragma once

#include "device/cuda/seal/seal_page.cuh"
#include "format/error_metric.h"

namespace kvant::cuda {

inline constexpr int kStepNumbers = 1 + 2 * kMetricRank;  // numbers in a FeedbackStep
static_assert(sizeof(FeedbackStep) == kStepNumbers * sizeof(float));

template <int D>
struct PageMetricWork {
  float turned[D][kMetricRank];
  float steps[D * kStepNumbers];  // the layout is that of FeedbackStep
};

// Computes the feedback and the weights of the directions in `steps`, from the last value to the first
// (src/format/error_metric.h). One warp calls this function. Lane 4 a + b / 2 has K[a][b] and K[a][b + 1] for
// even b.
template <int D>
__device__ void make_feedback(float* steps) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int a = lane / 4, b = lane % 4 * 2;
  float k0 = a == b ? 1 : 0, k1 = a == b + 1 ? 1 : 0;
#pragma unroll 1
  for (int i = D - 1; i >= 0; --i) {
    float* step = steps + i * kStepNumbers;
    const float* v = step + 1 + kMetricRank;
    float kv = k0 * v[b] + k1 * v[b + 1];
    kv += __shfl_xor_sync(~0U, kv, 1);
    kv += __shfl_xor_sync(~0U, kv, 2);  // the sum is (K v)[a]
    const float kv0 = __shfl_sync(~0U, kv, 4 * b), kv1 = __shfl_sync(~0U, kv, 4 * b + 4);
    float weight = kv * v[a];
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) weight += __shfl_xor_sync(~0U, weight, distance);
    weight += 1;
    const float gain = __fdividef(kv, weight);
    k0 -= gain * kv0;
    k1 -= gain * kv1;
    if (b == 0) step[1 + a] = gain;
    if (lane == 0) step[0] = weight;
  }
}

// Returns the number of a page within its sequence.
__device__ inline int page_of_sequence(const PageMetrics& metrics, const DueArgs& args, const DuePage& due) {
  return metrics.first_pages == nullptr ? due.page
                                        : metrics.first_pages[due.seq] + due.page - args.sealed_page[due.seq];
}

// Computes the steps of page `page` of a sequence. `layer` counts from the first sealed layer. All threads of
// the CTA must call this function, because it contains barriers.
template <int D>
__device__ void make_page_metric(const PageMetrics& metrics, const SealUnit& unit, int layer, int page,
                                 PageMetricWork<D>& work) {
  const auto thread = static_cast<int>(threadIdx.x), n_threads = static_cast<int>(blockDim.x);
  const float* directions = unit.metric + layer * metrics.direction_layer_stride;
  const float2* turns_of_channels = unit.turns + layer * metrics.turn_layer_stride;
  const bool exists = !isnan(directions[0]);
  const int middle = page * kPageTokens + kPageTokens / 2;
  for (int i = thread; i < D; i += n_threads) {
    const float2 turn = turns_of_channels[i];
    const double turns = static_cast<double>(turn.y) * middle;
    float sine, cosine;
    sincospif(static_cast<float>(2 * (turns - rint(turns))), &sine, &cosine);
    const int partner = min(max(static_cast<int>(turn.x), 0), D - 1);
#pragma unroll
    for (int r = 0; r < kMetricRank; ++r)
      work.turned[i][r] =
          directions[i * kMetricRank + r] * cosine - directions[partner * kMetricRank + r] * sine;
  }
  __syncthreads();
  const float* basis = metrics.basis + unit.head * metrics.basis_head_stride;
  for (int number = thread; number < D * kMetricRank; number += n_threads) {
    const int i = number % D, r = number / D;
    float sum = 0;
    if (metrics.basis == nullptr) {
      sum = work.turned[i][r];
    } else {
#pragma unroll 8
      for (int j = 0; j < D; ++j) sum += basis[j * D + i] * work.turned[j][r];
    }
    work.steps[i * kStepNumbers + 1 + kMetricRank + r] = sum;
  }
  __syncthreads();
  if (!exists) {
    if (thread == 0) work.steps[0] = 0;
  } else if (thread < 32) {
    make_feedback<D>(work.steps);
  }
  __syncthreads();
}

}  // namespace kvant::cuda
