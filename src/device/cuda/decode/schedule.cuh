// Divides a step's work among CTAs. The kernel runs once a step, for all layers. Its grid has a CTA for each
// number of KV heads that a launch may serve, and for each such number the kernel writes every Division. Each
// CTA finds the units of all sequences independently, so no CTA waits for another.
#pragma once

#include "cache/page_counts.h"
#include "device/cuda/decode/equal_ranges.cuh"
#include "device/cuda/decode/unit_cuts.h"

namespace kvant::cuda {

inline constexpr int kScheduleThreads = 1024;

// Returns the number of a sequence's units, and in `protected_pages` how many of them hold protected tokens.
__device__ inline int units_of(const DecodeArgs& args, int seq, int* protected_pages) {
  int n_tokens = 0;
  for (int head = 0; args.protected_tokens != nullptr && head < args.n_kv_heads; ++head)
    n_tokens = max(
        n_tokens, args.protected_tokens[seq * args.protected_seq_stride + head * args.protected_head_stride]);
  *protected_pages = pages_for(n_tokens);
  const int sealed = args.sealed_pages == nullptr ? 0 : args.sealed_pages[seq];
  const int tail = args.tail_tokens == nullptr ? 0 : args.tail_tokens[seq];
  return sealed + *protected_pages + pages_for(tail);
}

// Returns the sum of `x` over this thread and all threads before it. All threads of the CTA must call this
// function.
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

// The code from kSegmentUnits to deal_undivided() keeps ranges within one sequence and head if that needs at
// most kSegmentUnits more units per CTA. No CTA then merges its warps' results twice. Otherwise, ranges are
// equal (EqualRanges).

// A CTA may get this many more units than an equal share to keep ranges within one sequence and head.
inline constexpr int kSegmentUnits = 8;

// Returns the largest number of units per CTA if each CTA works for one sequence and head, or 0 if equal
// ranges are better. If CTAs have few units, one CTA for each sequence and head stays idle. In return, other
// CTAs may get at most an eighth more units. On the SMs of idle CTAs the next layer begins while the last CTA
// of each sequence and head still combines. Idle CTAs gain up to 10 % with few units, but cost 3 % with 64
// units.
__device__ inline int undivided_share(const DecodeArgs& args, int n_heads, int n_ctas, int equal_share) {
  __shared__ int best, best_with_spares;
  const int maximum = equal_share + kSegmentUnits;
  const int n_spare = equal_share <= kFewUnits ? args.n_seqs * n_heads : 0;
  if (threadIdx.x == 0) best = best_with_spares = maximum + 1;
  __syncthreads();
  if (threadIdx.x <= kSegmentUnits && args.n_seqs * n_heads <= n_ctas) {
    const int more = static_cast<int>(threadIdx.x);
    const int share = equal_share + more;
    int ctas = 0;
    for (int seq = 0; seq < args.n_seqs; ++seq) {
      const int units = args.schedule.first_unit[seq + 1] - args.schedule.first_unit[seq];
      ctas += (units + share - 1) / share;
    }
    ctas *= n_heads;
    if (ctas <= n_ctas) atomicMin(&best, share);
    if (ctas <= n_ctas - n_spare && more <= equal_share / 8) atomicMin(&best_with_spares, share);
  }
  __syncthreads();
  if (best_with_spares <= maximum) return best_with_spares;
  return best > maximum ? 0 : best;
}

// Returns a CTA's share of the work if each CTA works for one sequence and head. A sequence and head get one
// CTA for each `share` units.
__device__ inline WorkStart deal_undivided(const DecodeArgs& args, int n_heads, int cta, int share) {
  WorkStart start{};
  const std::int32_t* first_unit = args.schedule.first_unit;
  const int head_units = first_unit[args.n_seqs];
  int before = 0;  // CTAs of earlier heads and sequences
  for (int head = 0; head < n_heads; ++head) {
    for (int seq = 0; seq < args.n_seqs; ++seq) {
      const int units = first_unit[seq + 1] - first_unit[seq];
      const int n = (units + share - 1) / share;
      if (cta < before + n) {
        start.head_units = head_units;
        start.first_cta = before;
        start.last_cta = before + n - 1;
        begin_in(args, head, seq, start);
        const SequenceUnits of_sequence{units, start.n_sealed, start.n_protected};
        const int first = head * head_units + first_unit[seq];
        start.begin = first + first_unit_of(cta - before, n, of_sequence);
        start.end = first + first_unit_of(cta - before + 1, n, of_sequence);
        return start;
      }
      before += n;
    }
  }
  return start;
}

// A launch with SMs of its own is cut between sequences if no CTA then gets more than this many units above
// the mean. If a sequence is cut in two, one more CTA leaves the sequence, and the two parts must be
// combined. For CTAs that are not bound by memory, leaving and combining take as long as 10 to 20 units. With
// a kCutUnits of 12, memory-bound formats took up to 3 % longer. All formats took longer with sequences of
// two pages, because each CTA then has many sequences.
inline constexpr int kCutUnits = 6;
// Cuts between sequences require this many units a sequence on average.
inline constexpr int kLeastUncut = 3;
__device__ inline Cuts best_cuts(const DecodeArgs& args, int n_heads, Division division, int n_ctas) {
  if (args.schedule.first_unit[args.n_seqs] < kLeastUncut * args.n_seqs) return Cuts::anywhere;
  const EqualRanges ranges(args, n_heads, division, n_ctas, Cuts::between_sequences);
  bool is_more = false;
  for (int cta = static_cast<int>(threadIdx.x); cta < ranges.n_busy; cta += kScheduleThreads)
    is_more = is_more || ranges.positions(cta) > ranges.mean_positions() + kCutUnits;
  return __syncthreads_or(is_more ? 1 : 0) != 0 ? Cuts::anywhere : Cuts::between_sequences;
}

// Writes the schedule. The grid has a CTA for each number of heads. Ranges serve n_ctas CTAs, and n_arrivals
// counters are set to 0.
__global__ void __launch_bounds__(kScheduleThreads)
    schedule_kernel(const __grid_constant__ DecodeArgs args, int n_ctas, int n_arrivals) {
  __shared__ int carry;
  const Schedule& schedule = args.schedule;
  if (threadIdx.x == 0) carry = 0;
  __syncthreads();
  for (int begin = 0; begin < args.n_seqs; begin += kScheduleThreads) {
    const int seq = begin + static_cast<int>(threadIdx.x);
    int protected_pages = 0;
    const int units = seq < args.n_seqs ? units_of(args, seq, &protected_pages) : 0;
    const int sum = carry + inclusive_sum(units);
    if (seq < args.n_seqs) {
      schedule.protected_pages[seq] = protected_pages;
      schedule.first_unit[seq] = sum - units;
      if (seq == args.n_seqs - 1) schedule.first_unit[args.n_seqs] = sum;
    }
    __syncthreads();
    if (threadIdx.x == kScheduleThreads - 1) carry = sum;
    __syncthreads();
  }
  const int n_heads = static_cast<int>(blockIdx.x) + 1;
  // One division of each launch has SMs to itself. Its ranges keep to sequences where that pays.
  const bool on_all_heads = n_heads == args.n_kv_heads;
  const Division alone = on_all_heads ? Division::equal : Division::side_by_side;
  const int n_alone = on_all_heads ? n_ctas : side_by_side_ctas(n_ctas, n_heads, args.n_kv_heads);
  const long long units = static_cast<long long>(schedule.first_unit[args.n_seqs]) * n_heads;
  const int n_busy = static_cast<int>(min(static_cast<long long>(n_alone), units));
  const int share =
      n_busy == 0 ? 0
                  : undivided_share(args, n_heads, n_alone, static_cast<int>((units + n_busy - 1) / n_busy));
  const Cuts cuts = share > 0 || n_busy == 0 ? Cuts::anywhere : best_cuts(args, n_heads, alone, n_alone);
  for (int i = static_cast<int>(threadIdx.x); i < kDivisions * n_ctas; i += kScheduleThreads) {
    const int cta = i % n_ctas;
    const auto division = static_cast<Division>(i / n_ctas);
    const bool is_alone = division == alone;
    WorkStart& start = schedule.starts[(n_heads - 1) * kDivisions * n_ctas + i];
    if (is_alone && share > 0)
      start = deal_undivided(args, n_heads, cta, share);
    else
      start = equal_range(args, n_heads, division, is_alone ? n_alone : n_ctas,
                          is_alone ? cuts : Cuts::anywhere, cta);
  }
  const int n_threads = static_cast<int>(gridDim.x) * kScheduleThreads;
  for (int i = static_cast<int>(blockIdx.x * kScheduleThreads + threadIdx.x); i < n_arrivals; i += n_threads)
    schedule.arrivals[i] = 0;
  // Some decode kernels read the schedule without wait_for_predecessors(). With overlapping launches, these
  // kernels may begin as soon as all CTAs of this kernel have exited. The fence makes the schedule visible to
  // them.
  __threadfence();
}

}  // namespace kvant::cuda
