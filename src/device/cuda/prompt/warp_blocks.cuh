// Shares blocks of query rows among CTAs with products of warps (mma.sync). All threads copy steps of 64
// tokens into a ring. Each warp computes the attention of its own rows over the steps that these rows see.
#pragma once

#include "device/cuda/prompt/blocks.cuh"
#include "device/cuda/prompt/join_halves.cuh"

namespace kvant::cuda {

inline constexpr int kMostSlots = 4;  // slots of the ring

// Describes which tokens all of a warp's rows see, and which tokens any of the rows sees. Tokens in sealed
// pages come first, and then tokens in rows.
struct WarpSight {
  SeenByAll all[2];
  SeenByAll any[2];
};

// Describes a block to all threads of a CTA.
template <int Warps>
struct WarpBlock {
  PromptItem item;
  int head, n_steps;
  int next_work;
  WarpSight sight[Warps];
  int claims[Warps];
};

// Waits for the oldest of n_slots - 1 groups of copies.
__device__ __forceinline__ void wait_for_oldest(int n_slots) {
  static_assert(kMostSlots == 4);
  if (n_slots == 4)
    wait_for_copies<2>();
  else if (n_slots == 3)
    wait_for_copies<1>();
  else
    wait_for_copies<0>();
}

// Returns the number of steps in a block's tiles. If the last tile's second half is hidden from all rows,
// that half does not count.
__device__ __forceinline__ int steps_of(const PromptArgs& args, const PromptItem& item) {
  const int n = 2 * tiles_of(item);
  if (item.end_tile == item.tile) return n;
  const int end = min(limit_of(args, item, item.n_rows - 1), item.tokens);
  return end - item.first_token <= item.end_tile * kTileTokens - kStepTokens ? n - 1 : n;
}

// Finds which tokens are visible to rows [row, last] of a block.
__device__ __forceinline__ WarpSight find_sight(const PromptArgs& args, const PromptItem& item, int row,
                                                int last) {
  WarpSight sight;
  find_seen_by_all(args, item, row, last, sight.all);
  const int first = args.window > 0 ? limit_of(args, item, row) - args.window : -kUnbounded;
  const int end = limit_of(args, item, last);
  sight.any[0] = {first, min(end, sealed_end_of(args, item, last))};
  sight.any[1] = {max(first, sealed_end_of(args, item, row)), min(end, item.tokens)};
  return sight;
}

// Returns the tile that contains a step of the block.
__device__ __forceinline__ const unsigned char* tile_of_step(const PromptArgs& args, const PromptItem& item,
                                                             int head, int step, int tile_bytes) {
  const int tile = step / 2;
  const int n_pages = item.end_page - item.page;
  const int slot =
      tile < n_pages ? item.page_slot + item.page + tile : item.row_slot + item.tile + tile - n_pages;
  return args.tiles + (static_cast<std::int64_t>(slot) * args.n_kv_heads + head / args.group) * tile_bytes;
}

// Describes where a step of a block lies: in sealed pages or rows, and at which token.
struct StepPlace {
  bool is_rows;
  int first;  // first token of the step
};
__device__ __forceinline__ StepPlace place_of_step(const PromptItem& item, int step) {
  const int n_pages = item.end_page - item.page;
  const bool is_rows = step / 2 >= n_pages;
  return {is_rows,
          (is_rows ? item.first_token + (item.tile - n_pages) * kTileTokens : item.page * kTileTokens) +
              step * kStepTokens};
}

// Returns whether a warp stores tile m of its rows. If two CTAs share a block, the CTA that arrives last adds
// the other CTA's results to its own and stores the tile.
template <class Shape>
__device__ __forceinline__ bool stores_tile(const PromptArgs& args, const PromptItem& item, int head,
                                            int warp, int m, int lane, int& claim, RowSums& rows,
                                            float (&sums)[Shape::kSumChannels / 2]) {
  if (item.split < 0) return true;
  constexpr int kD = Shape::kSumChannels;
  const int place = (item.split * args.n_heads + head) * Shape::kParts + warp * Shape::kRowTiles + m;
  return join_halves<kD, 32>(args.halves + static_cast<std::int64_t>(place) * HalfSums<kD, 32>::kNumbers,
                             args.claims + 2 * place, kFirstGroupBarrier + warp, lane, claim, rows, sums);
}

// Takes blocks until no work is left, and calls attend(warp, lane) on all threads for each block. All threads
// of the CTA must call this function, because it contains barriers.
template <class Shared, class Attend>
__device__ __forceinline__ void take_blocks(const PromptArgs& args, Shared& shared, const Attend& attend) {
  const int warp = __shfl_sync(~0U, static_cast<int>(threadIdx.x) / 32, 0);
  // Predecessors make the tiles and the plan.
  wait_for_predecessors();
  const int n_work = *args.n_items * args.n_heads;
  for (int work = static_cast<int>(blockIdx.x); work < n_work;) {
    // Values derived from `thread` are computed again for each block, because sums need the registers.
    int thread = static_cast<int>(threadIdx.x);
    asm volatile("" : "+r"(thread));
    if (thread == 0) {
      shared.item = args.items[work / args.n_heads];
      shared.head = work % args.n_heads;
      shared.n_steps = steps_of(args, shared.item);
      shared.next_work = static_cast<int>(gridDim.x) + atomicAdd(args.next, 1);
    }
    __syncthreads();
    work = shared.next_work;
    attend(warp, thread % 32);
    __syncthreads();
  }
}

}  // namespace kvant::cuda
