// Shares the work of prefill attention among CTAs, for all types of products. A block consists of query rows
// and of the tiles that are visible to these rows. In each CTA the query warps prepare blocks, and other
// warps attend to a block's tiles, which pass through a ring in shared memory.
#pragma once

#include "device/cuda/common/ptx.cuh"
#include "device/cuda/prompt/plan.cuh"
#include "device/cuda/prompt/prompt_args.h"

namespace kvant::cuda {

inline constexpr int kGroupRows = 64;
inline constexpr int kGroupThreads = 128;
inline constexpr int kQueryWarps = 3;
// The named barriers from this one on belong to groups of rows. Barrier 1 belongs to the query warps.
inline constexpr int kFirstGroupBarrier = 2;

// Describes the tokens, [first, end), that are visible to all rows of a group.
struct SeenByAll {
  int first, end;
};

// Represents a range [first, end) in the order of a block's tiles.
struct TileRange {
  int first, end;
};

// Describes which tokens and tiles are visible to the rows of a block. Shape provides kRows and kGroups.
template <class Shape>
struct BlockSight {
  // A row reads tokens before sealed_end[row] in sealed pages, and later tokens as rows.
  int sealed_end[Shape::kRows];
  SeenByAll all[Shape::kGroups][2];  // [group][2]: for sealed pages, then for rows
  // Tiles from this number on are hidden from all rows of a group.
  int seen_tiles[Shape::kGroups];
  // Tiles in this range are hidden from all rows of a group. The range lies before the tile seen_tiles. The
  // hidden tiles are pages whose tokens the group reads as rows, or rows whose tokens the group reads in
  // pages.
  TileRange hidden_tiles[Shape::kGroups];
  // An item with 0 rows means that there is no more work.
  PromptItem item;
  int head;
};

// Starts a bulk copy into shared memory, whose bytes arrive on `barrier`.
__device__ __forceinline__ void copy_tile(std::uint32_t to, const void* from, std::uint32_t bytes,
                                          std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// Names a slot of a ring of N slots, and the parity of the slot's barriers in the present round.
template <int N>
struct RingPlace {
  int slot = 0;
  std::uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++slot == N) {
      slot = 0;
      parity ^= 1;
    }
  }
};

// A row's limit has this value if attention is not causal.
inline constexpr int kUnbounded = 0x3fffffff;

// Returns the first token that is hidden from a row of a block because of causality.
__device__ __forceinline__ int limit_of(const PromptArgs& args, const PromptItem& item, int row) {
  return args.causal != 0 ? item.limit + row : kUnbounded;
}

// Returns the token before which a row of a block reads sealed pages. The row reads later tokens as rows.
// Rows after the block's last row are treated like the last row.
__device__ __forceinline__ int sealed_end_of(const PromptArgs& args, const PromptItem& item, int row) {
  return pages_seen(args, item.first_row + min(row, item.n_rows - 1), item.n_sealed) * kTileTokens;
}

// Finds which tokens are visible to all of the block's rows [row, last]. all[0] describes sealed pages, and
// all[1] describes rows.
__device__ __forceinline__ void find_seen_by_all(const PromptArgs& args, const PromptItem& item, int row,
                                                 int last, SeenByAll (&all)[2]) {
  const int limit = limit_of(args, item, row);
  // Tokens from `end` on are hidden from all rows.
  const int end = limit_of(args, item, last);
  const int first = args.window > 0 ? end - args.window : -kUnbounded;
  all[0] = {first, min(limit, sealed_end_of(args, item, row))};
  all[1] = {max(first, sealed_end_of(args, item, last)), min(limit, item.tokens)};
}

// Finds the columns [low, high) of a tile that are visible to a row. The tile begins with token `first` and
// holds a sealed page or rows.
__device__ __forceinline__ void find_columns(const PromptArgs& args, const PromptItem& item, int limit,
                                             int sealed_end, bool is_rows, int first, int& low, int& high) {
  low = max(args.window > 0 ? limit - args.window : 0, is_rows ? sealed_end : 0) - first;
  high = min(limit, is_rows ? item.tokens : sealed_end) - first;
}

// Finds which tokens and tiles are visible to a group's rows. The group's first row is row `row` of the item.
template <class Shape>
__device__ __forceinline__ void find_seen_by_group(const PromptArgs& args, const PromptItem& item, int group,
                                                   int row, BlockSight<Shape>& block) {
  const int last = row + kGroupRows - 1;
  find_seen_by_all(args, item, row, last, block.all[group]);
  const int end = limit_of(args, item, last);
  const int row_tiles = (end - item.first_token + kTileTokens - 1) / kTileTokens;
  const int seen = item.end_page - item.page + max(min(row_tiles, item.end_tile) - item.tile, 0);
  block.seen_tiles[group] = max(seen, 1);
  const int pages = max(sealed_end_of(args, item, last) / kTileTokens - item.page, 0);
  const int first_row = (sealed_end_of(args, item, row) - item.first_token) / kTileTokens;
  const TileRange hidden{min(pages, item.end_page - item.page),
                         item.end_page - item.page + max(first_row - item.tile, 0)};
  // The range must leave a group at least one tile.
  block.hidden_tiles[group] = hidden.end < block.seen_tiles[group] ? hidden : TileRange{0, 0};
}

// Finds which tokens and tiles are visible to all rows and groups of a block. One warp runs this function.
template <class Shape>
__device__ __forceinline__ void find_seen(const PromptArgs& args, const PromptItem& item, int lane,
                                          BlockSight<Shape>& block) {
  for (int row = lane; row < Shape::kRows; row += 32) block.sealed_end[row] = sealed_end_of(args, item, row);
  if (lane < Shape::kGroups) find_seen_by_group(args, item, lane, lane * kGroupRows, block);
}

// Prepares blocks until no work is left. The query warps run this function. await_queries(item, head) may
// start to load rows of a warp's share before there is space for another block. read_queries(item, head,
// slot) brings the rows into shared memory.
template <class Shared, class Await, class Read>
__device__ __forceinline__ void prepare_blocks(const PromptArgs& args, Shared& shared, int warp, int lane,
                                               const Await& await_queries, const Read& read_queries) {
  constexpr int kBarrier = 1;
  const int n_work = *args.n_items * args.n_heads;
  RingPlace<2> place;
  for (int work = static_cast<int>(blockIdx.x);; place.advance()) {
    auto& block = shared.blocks[place.slot];
    const bool is_there = work < n_work;
    // The item is read in place because registers are scarce.
    const PromptItem& item = args.items[is_there ? work / args.n_heads : 0];
    const int head = work % args.n_heads;
    if (is_there) await_queries(item, head);
    barrier_wait(shared_address(&shared.block_free[place.slot]), place.parity ^ 1);
    const std::uint32_t full = shared_address(&shared.block_full[place.slot]);
    if (warp == 0 && lane == 0) {
      block.item = is_there ? item : PromptItem{};
      block.head = head;
    }
    // The next work is fetched while the warps prepare this block.
    int next = 0;
    if (warp == 0 && lane == 0) next = static_cast<int>(gridDim.x) + atomicAdd(args.next, 1);
    if (is_there) {
      if (warp == kQueryWarps - 1) find_seen(args, item, lane, block);
      read_queries(item, head, place.slot);
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    if (warp == 0 && lane == 0) shared.work = next;
    named_barrier(kBarrier, kQueryWarps * 32);
    if (lane == 0) barrier_arrive(full);
    if (!is_there) return;
    work = shared.work;
    named_barrier(kBarrier, kQueryWarps * 32);
  }
}

// Transposes four words of four lanes. Lane i gets word i of lanes 0 to 3.
__device__ __forceinline__ void transpose_quad(std::uint32_t (&x)[4], int pair) {
  const bool is_odd = (pair & 1) != 0;
  const bool is_high = (pair & 2) != 0;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const std::uint32_t got = __shfl_xor_sync(~0U, is_odd ? x[i] : x[i + 1], 1);
    (is_odd ? x[i] : x[i + 1]) = got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t got = __shfl_xor_sync(~0U, is_high ? x[i] : x[i + 2], 2);
    (is_high ? x[i] : x[i + 2]) = got;
  }
}

// Returns the first of a thread's two rows of its group. The second row is 8 rows after the first.
__device__ __forceinline__ int row_of(int thread) {
  return thread / 32 * 16 + thread % 32 / 4;
}

}  // namespace kvant::cuda
