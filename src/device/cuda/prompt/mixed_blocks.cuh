// Shares blocks among CTAs if a block's groups of rows belong to several query heads of a KV head
// (BlockUnits). For each item, sets of heads take turns. Long blocks take new work near their end, so CTAs
// that finish first get more blocks.
#pragma once

#include "device/cuda/prompt/blocks.cuh"

namespace kvant::cuda {

// Names the rows of a group by their query head and by the index of the first row within the block's item.
struct GroupRows {
  int head, first;
};

// Returns the rows of a group of the item. `head` is the first query head of the block's set.
__device__ __forceinline__ GroupRows rows_of_group(const PromptArgs& args, const PromptItem& item, int head,
                                                   int group) {
  const int unit = item.first_head + group;
  return {head + unit % args.mixed, unit / args.mixed * kGroupRows};
}

// Describes which tokens and tiles are visible to the rows of a mixed block. BlockSight::head is the first
// query head of the set.
template <class Shape>
struct MixedSight : BlockSight<Shape> {
  GroupRows rows[Shape::kGroups];
  int set;
};

// Finds which tokens and tiles are visible to all rows and groups of a block. One warp runs this function.
template <class Shape>
__device__ __forceinline__ void find_seen(const PromptArgs& args, const PromptItem& item, int head, int lane,
                                          MixedSight<Shape>& block) {
#pragma unroll 1
  for (int group = 0; group < Shape::kGroups; ++group) {
    const int first = rows_of_group(args, item, head, group).first;
#pragma unroll 1
    for (int row = lane; row < kGroupRows; row += 32)
      block.sealed_end[group * kGroupRows + row] = sealed_end_of(args, item, first + row);
  }
  if (lane >= Shape::kGroups) return;
  const GroupRows rows = rows_of_group(args, item, head, lane);
  block.rows[lane] = rows;
  find_seen_by_group(args, item, lane, rows.first, block);
}

// Names a block by its item's number and a set of heads. A negative item means that there is no more work.
struct MixedWork {
  int item, set;
};

// Returns piece n of the work. All items of some sets come first, then all items of the next sets.
__device__ __forceinline__ MixedWork find_work(const PromptArgs& args, int n) {
  const int n_items = *args.n_items, together = *args.sets_together;
  if (n >= n_items * args.n_sets) return {-1, 0};
  const int first_set = n / (n_items * together) * together;
  const int n_sets = min(together, args.n_sets - first_set);
  n -= first_set * n_items;
  return {n / n_sets, first_set + n % n_sets};
}

// Blocks with more tiles than this are long. More work is taken when this many tiles of a long block remain
// to be copied. The tiles that remain, together with the tiles in the ring, last long enough to prepare the
// next block.
inline constexpr int kNearEnd = 16;

// Returns the number of the next piece of work that no CTA has taken.
__device__ __forceinline__ int take_work(const PromptArgs& args) {
  return static_cast<int>(gridDim.x) + atomicAdd(args.next, 1);
}

// Prepares blocks until no work is left, like prepare_blocks(). For a long block, more work is taken near its
// end, when the copying warp arrives on shared.near_end. The remaining work then goes to CTAs that finish
// first. For a short block, more work is taken while the block is prepared.
template <class Shared, class Await, class Read>
__device__ __forceinline__ void prepare_mixed_blocks(const PromptArgs& args, Shared& shared, int warp,
                                                     int lane, const Await& await_queries,
                                                     const Read& read_queries) {
  constexpr int kBarrier = 1;
  std::uint32_t near_end = 0;
  RingPlace<2> place;
  for (MixedWork work = find_work(args, static_cast<int>(blockIdx.x));; place.advance()) {
    auto& block = shared.blocks[place.slot];
    const bool is_there = work.item >= 0;
    // The item is read in place because registers are scarce.
    const PromptItem& item = args.items[max(work.item, 0)];
    const int head = work.set * args.mixed;
    if (is_there) await_queries(item, head);
    barrier_wait(shared_address(&shared.block_free[place.slot]), place.parity ^ 1);
    const std::uint32_t full = shared_address(&shared.block_full[place.slot]);
    const bool is_long = is_there && tiles_of(item) > kNearEnd;
    if (warp == 0 && lane == 0) {
      block.item = is_there ? item : PromptItem{};
      block.set = work.set;
      block.head = head;
    }
    // The number is turned into work after the queries have been read, so nothing waits earlier for the
    // atomic addition.
    int next = 0;
    if (is_there && !is_long && warp == 0 && lane == 0) next = take_work(args);
    if (is_there) {
      if (warp == kQueryWarps - 1) find_seen(args, item, head, lane, block);
      read_queries(item, head, place.slot);
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    if (is_there && !is_long && warp == 0 && lane == 0) shared.work = find_work(args, next);
    named_barrier(kBarrier, kQueryWarps * 32);
    if (lane == 0) barrier_arrive(full);
    if (!is_there) return;
    if (is_long) {
      if (warp == 0) {
        barrier_wait(shared_address(&shared.near_end), near_end);
        if (lane == 0) shared.work = find_work(args, take_work(args));
      }
      near_end ^= 1;
      named_barrier(kBarrier, kQueryWarps * 32);
    }
    work = shared.work;
    named_barrier(kBarrier, kQueryWarps * 32);
  }
}

}  // namespace kvant::cuda
