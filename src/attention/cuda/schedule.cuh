// Deals out a step's work: one launch of one CTA, once a step.
#pragma once

#include "attention/cuda/work_range.cuh"

namespace kvant::cuda {

inline constexpr int kScheduleThreads = 1024;

__device__ inline int units_of(const DecodeArgs& args, int seq, int* side_pages) {
  int side = 0;
  for (int head = 0; args.side_tokens != nullptr && head < args.n_kv_heads; ++head)
    side = max(side, args.side_tokens[seq * args.side_seq_stride + head * args.side_head_stride]);
  *side_pages = (side + kTokens - 1) / kTokens;
  const int sealed = args.sealed_pages == nullptr ? 0 : args.sealed_pages[seq];
  const int tail = args.tail_tokens == nullptr ? 0 : args.tail_tokens[seq];
  return sealed + *side_pages + (tail + kTokens - 1) / kTokens;
}

// Inclusive sums of one number for each thread of the CTA.
__device__ inline int inclusive_sum(int x) {
  __shared__ int warp_sums[kScheduleThreads / 32];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(~0U, x, step);
    if (lane >= step) x += other;
  }
  if (lane == 31) warp_sums[warp] = x;
  __syncthreads();
  for (int i = 0; i < warp; ++i) x += warp_sums[i];
  __syncthreads();
  return x;
}

__global__ void __launch_bounds__(kScheduleThreads)
    schedule_kernel(const __grid_constant__ DecodeArgs args, int n_ctas) {
  __shared__ int carry;
  const Schedule& schedule = args.schedule;
  if (threadIdx.x == 0) carry = 0;
  __syncthreads();
  for (int begin = 0; begin < args.n_seqs; begin += kScheduleThreads) {
    const int seq = begin + static_cast<int>(threadIdx.x);
    int side_pages = 0;
    const int units = seq < args.n_seqs ? units_of(args, seq, &side_pages) : 0;
    const int sum = carry + inclusive_sum(units);
    if (seq < args.n_seqs) {
      schedule.side_pages[seq] = side_pages;
      schedule.first_unit[seq] = sum - units;
      if (seq == args.n_seqs - 1) schedule.first_unit[args.n_seqs] = sum;
    }
    __syncthreads();
    if (threadIdx.x == kScheduleThreads - 1) carry = sum;
    __syncthreads();
  }
  const int head_units = schedule.first_unit[args.n_seqs];
  const long long units = static_cast<long long>(head_units) * args.n_kv_heads;
  const int n_busy = static_cast<int>(min(static_cast<long long>(n_ctas), units));
  for (int cta = static_cast<int>(threadIdx.x); cta < n_ctas; cta += kScheduleThreads) {
    WorkStart start{};
    if (cta < n_busy) {
      start.begin = static_cast<int>(cta * units / n_busy);
      start.end = static_cast<int>((cta + 1) * units / n_busy);
      start.head_units = head_units;
      start.n_ctas = n_busy;
      start.head = start.begin / head_units;
      start.seq = find_sequence(schedule.first_unit, args.n_seqs, start.begin - start.head * head_units);
      start.seq_begin = schedule.first_unit[start.seq];
      start.seq_end = schedule.first_unit[start.seq + 1];
      start.n_sealed = args.sealed_pages == nullptr ? 0 : args.sealed_pages[start.seq];
      start.n_side = schedule.side_pages[start.seq];
    }
    schedule.start[cta] = start;
  }
  for (int i = static_cast<int>(threadIdx.x); i < args.n_kv_heads * args.n_seqs; i += kScheduleThreads)
    schedule.arrivals[i] = 0;
}

}  // namespace kvant::cuda
