// Adds KVLinC's correction to a prompt's rows after their attention. The products of features and states are
// added to each row's sum of weights and to its output. Neighbouring rows mostly attend to the same sealed
// pages and then share a state, so a CTA keeps the state in registers.
#pragma once

#include "device/cuda/correction/correction_kernel.cuh"

namespace kvant::cuda {

// A CTA corrects this many rows. Most rows have the same state as the previous row.
inline constexpr int kCorrectedRows = 16;
// Rows with the same state are multiplied together, up to this many query heads in total.
inline constexpr int kCorrectedHeads = 16;
static_assert(kCorrectedHeads >= kPaddedGroup);

// Replaces four neighbouring channels of an output by weight * out + share * numerator.
__device__ __forceinline__ void join_channels(const PromptCorrection& args, std::int64_t at, float weight,
                                              float share, float4 numerator) {
  const float4 joined = {share * numerator.x, share * numerator.y, share * numerator.z, share * numerator.w};
  if (args.out_type == NumberType::f32) {
    auto* out = reinterpret_cast<float4*>(static_cast<float*>(args.out) + at);
    *out = fma4(weight, *out, joined);
    return;
  }
  auto* out = reinterpret_cast<__nv_bfloat162*>(static_cast<__nv_bfloat16*>(args.out) + at);
  const float2 low = __bfloat1622float2(out[0]), high = __bfloat1622float2(out[1]);
  const float4 x = fma4(weight, {low.x, low.y, high.x, high.y}, joined);
  out[0] = __floats2bfloat162_rn(x.x, x.y);
  out[1] = __floats2bfloat162_rn(x.z, x.w);
}

// Corrects head `head` of a row, whose features are at index `h` in shared memory. One warp calls this
// function. The sums are relative to the largest score, as in join_correction() (leave_segment.cuh).
__device__ __forceinline__ void correct_head(const PromptCorrection& args,
                                             const StateShared<kCorrectedHeads>& shared, int h, int row,
                                             int head, int first_channel, int lane) {
  const float mass = sum_of_features(shared, h, lane);
  const int n_heads = args.queries.n_kv_heads * args.queries.group;
  const PromptRowSums sums = args.sums[std::int64_t{row} * n_heads + head];
  // The row attends to no sealed token.
  if (mass == 0 || sums.mass == 0) return;
  float top = sums.reference, weight = sums.mass, share = 1;
  if (args.absolute != 0) {
    weight *= exp2_fast(fminf(top, 0));
    top = fmaxf(top, 0);
    share = exp2_fast(-top);
  }
  const float sum = fmaf(share, mass, weight);
  if (lane < StateRows::kColumns)
    join_channels(args, row * args.out_token_stride + head * args.out_head_stride + first_channel + 4 * lane,
                  weight / sum, share / sum, sum_of_warps(shared, h, lane));
  if (first_channel == 0 && lane == 0 && args.lse != nullptr)
    args.lse[row * args.lse_token_stride + head * args.lse_head_stride] = (top + log2f(sum)) * 0.69314718F;
}

// Corrects the rows of a KV head in kStateChannels channels. The grid is [blocks of rows][KV heads * parts of
// the channels].
template <int D>
__global__ void __launch_bounds__(kStateThreads, 4)
    correct_rows_kernel(const __grid_constant__ PromptCorrection args) {
  __shared__ StateShared<kCorrectedHeads> shared;
  const CorrectionArgs& queries = args.queries;
  const int thread = threadIdx.x, group = queries.group;
  const int kv_head = blockIdx.x / (D / kStateChannels);
  const int first_channel = blockIdx.x % (D / kStateChannels) * kStateChannels;
  const int first_row = blockIdx.y * kCorrectedRows, end = min(first_row + kCorrectedRows, queries.n_seqs);
  const int n_heads = queries.n_kv_heads * group, first_head = kv_head * group;
  const auto state_of = [&](int row) -> const float* { return queries.states.at(row, kv_head); };
  StateRows rows;
  const float* loaded = nullptr;
  wait_for_predecessors();
  admit_successors();
#pragma unroll 1
  for (int row = first_row; row < end;) {
    const float* state = state_of(row);
    int n = 1;
    while ((n + 1) * group <= kCorrectedHeads && row + n < end && state_of(row + n) == state) ++n;
    __syncthreads();
    if (state != loaded) {
      rows.load<D>(state + first_channel, thread);
      shared.z[thread] = state[kFeatures * D + thread];
      loaded = state;
    }
    for (int i = 0; i < n; ++i)
      load_features(shared, i * group,
                    queries.features + (std::int64_t{row + i} * n_heads + first_head) * kFeatures, group,
                    thread);
    __syncthreads();
    rows.multiply(shared, n * group, thread);
    __syncthreads();
    for (int h = thread / kLanes; h < n * group; h += kStateThreads / kLanes)
      correct_head(args, shared, h, row + h / group, first_head + h % group, first_channel, thread % kLanes);
    row += n;
  }
}

}  // namespace kvant::cuda
