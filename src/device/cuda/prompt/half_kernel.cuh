// Computes prefill attention in half precision with products of warpgroups (sm_90a). The results are as exact
// as the results of decode attention. CTAs share work as in prompt_kernel.cuh.
//
// A ring slot holds the keys or the values of one tile. Keys arrive one tile ahead, because the tensor cores
// compute the next tile's scores while a warpgroup turns the current scores into weights. Sums of values stay
// in their registers, and their unit changes only if a row's scores rise a lot.
#pragma once

#include "device/cuda/prompt/blocks.cuh"
#include "device/cuda/prompt/half_rows.cuh"
#include "device/cuda/prompt/half_weigh.cuh"
#include "device/cuda/prompt/half_wgmma.cuh"
#include "device/cuda/prompt/join_halves.cuh"

namespace kvant::cuda {

template <int D>
struct HalfShape {
  static constexpr int kGroups = D == 64 ? 3 : 2;
  static constexpr int kRows = kGroups * kGroupRows;
  static constexpr int kThreads = (kGroups + 1) * kGroupThreads;
  static constexpr int kSlots = D == 64 ? 8 : 5;
  static constexpr int kGroupBytes = kGroupRows * D * 2;  // bytes of a group's queries
  static constexpr int kConsumerRegisters = D == 64 ? 160 : 232;
  static constexpr int kProducerRegisters = D == 64 ? 32 : 40;
  // The CTA has this many registers per thread at launch. Groups that request more registers in total would
  // wait for ever.
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static_assert(kGroups * kConsumerRegisters + kProducerRegisters <= (kGroups + 1) * kLaunchRegisters);
};

template <int D>
struct HalfShared {
  using Shape = HalfShape<D>;
  unsigned char slots[Shape::kSlots][HalfTile<D>::kSideBytes];
  unsigned char queries[2][Shape::kGroups * Shape::kGroupBytes];
  BlockSight<Shape> blocks[2];
  std::uint64_t slot_full[Shape::kSlots], slot_free[Shape::kSlots];
  std::uint64_t block_full[2], block_free[2];
  int work;
  int claims[Shape::kGroups];
};

// place_of_keys() and place_of_values() return the place of a tile's keys and values in a block's order of
// arrival. The order is keys 0, keys 1, values 0, keys 2, values 1, and so on.
__device__ __forceinline__ unsigned place_of_keys(int n) {
  return n == 0 ? 0 : 2 * n - 1;
}
__device__ __forceinline__ unsigned place_of_values(int n, int n_tiles) {
  return n + 1 == n_tiles ? 2 * n + 1 : 2 * n + 2;
}

// Copies the tiles of all blocks into the ring. One thread runs this function.
template <int D>
__device__ __forceinline__ void copy_half_tiles(const PromptArgs& args, HalfShared<D>& shared) {
  using Tile = HalfTile<D>;
  RingPlace<2> block;
  RingPlace<HalfShape<D>::kSlots> ring;
  for (;; block.advance()) {
    barrier_wait(shared_address(&shared.block_full[block.slot]), block.parity);
    const PromptItem item = shared.blocks[block.slot].item;
    const int head = shared.blocks[block.slot].head;
    barrier_arrive(shared_address(&shared.block_free[block.slot]));
    if (item.n_rows == 0) return;
    const int n_pages = item.end_page - item.page;
    const int n_tiles = tiles_of(item);
    const auto copy = [&](int n, int side) {
      const int slot = n < n_pages ? item.page_slot + item.page + n : item.row_slot + item.tile + n - n_pages;
      barrier_wait(shared_address(&shared.slot_free[ring.slot]), ring.parity ^ 1);
      const std::uint32_t full = shared_address(&shared.slot_full[ring.slot]);
      expect_bytes(full, Tile::kSideBytes);
      copy_tile(shared_address(shared.slots[ring.slot]),
                args.tiles +
                    (static_cast<std::int64_t>(slot) * args.n_kv_heads + head / args.group) * Tile::kBytes +
                    side * Tile::kSideBytes,
                Tile::kSideBytes, full);
      ring.advance();
    };
    copy(0, 0);
    for (int n = 1; n < n_tiles; ++n) {
      copy(n, 0);
      copy(n - 1, 1);
    }
    copy(n_tiles - 1, 1);
  }
}

// HalfBlock computes the attention of one group's rows over the tiles of a block.
template <int D, class Weight>
class HalfBlock {
 public:
  using Shape = HalfShape<D>;

  // `base` is the number of ring slots that were filled before the block.
  __device__ __forceinline__ HalfBlock(const PromptArgs& args, HalfShared<D>& shared, int place,
                                       unsigned base, int group, int thread)
      : args_(args),
        shared_(shared),
        block_(shared.blocks[place]),
        base_(base),
        group_(group),
        lane_(thread % 32),
        row_(group * kGroupRows + row_of(thread)),
        n_pages_(block_.item.end_page - block_.item.page),
        n_tiles_(tiles_of(block_.item)),
        queries_(swizzled_matrix<128>(shared_address(shared.queries[place] + group * Shape::kGroupBytes))) {
    rows_.reference[0] = rows_.reference[1] = kNoReference;
  }

  __device__ __forceinline__ void attend(int thread) {
    const int n_seen = block_.seen_tiles[group_];
    std::uint32_t p[32];
    float s[64];
    begin_scores(s, 0);
    finish_products<0>();
    hold_registers(s);
    free(place_of_keys(0));
    float shrink[2];
    weigh(s, 0, shrink);
    pack(s, p);
    for (int n = 1; n < n_seen; ++n) {
      begin_scores(s, n);
      begin_values(p, n - 1);
      finish_products<1>();
      hold_registers(s);
      free(place_of_keys(n));
      const bool shrinks = weigh(s, n, shrink);
      finish_products<0>();
      hold_registers(sums_);
      hold_registers(p);
      free(place_of_values(n - 1, n_tiles_));
      if (shrinks) {
#pragma unroll
        for (int i = 0; i < D / 2; ++i) sums_[i] *= shrink[i / 2 % 2];
      }
      pack(s, p);
    }
    begin_values(p, n_seen - 1);
    finish_products<0>();
    hold_registers(sums_);
    hold_registers(p);
    free(place_of_values(n_seen - 1, n_tiles_));
    // Later tiles are hidden from the group, but the group must release their slots.
    for (int n = n_seen; n < n_tiles_; ++n) {
      let_go(place_of_keys(n));
      let_go(place_of_values(n, n_tiles_));
    }
    if (joined(thread)) store_half_rows<D>(args_, block_.item, block_.head, row_, lane_ % 4, 0, rows_, sums_);
  }

 private:
  __device__ __forceinline__ int slot(unsigned place) const {
    return static_cast<int>((base_ + place) % Shape::kSlots);
  }
  __device__ __forceinline__ void wait(unsigned place) const {
    barrier_wait(shared_address(&shared_.slot_full[slot(place)]), (base_ + place) / Shape::kSlots % 2);
  }
  __device__ __forceinline__ void free(unsigned place) const {
    if (lane_ == 0) barrier_arrive(shared_address(&shared_.slot_free[slot(place)]));
  }
  __device__ __forceinline__ void let_go(unsigned place) const {
    wait(place);
    free(place);
  }

  __device__ __forceinline__ void begin_scores(float (&s)[64], int n) const {
    const unsigned place = place_of_keys(n);
    wait(place);
    const std::uint64_t keys = swizzled_matrix<128>(shared_address(shared_.slots[slot(place)]));
    hold_registers(s);
    begin_products();
    multiply_scores<false>(s, queries_, keys);
#pragma unroll
    for (int k = 1; k < D / 16; ++k)
      multiply_scores<true>(s, queries_ + step(k, kGroupRows), keys + step(k, kTileTokens));
    commit_products();
  }
  __device__ __forceinline__ void begin_values(const std::uint32_t (&p)[32], int n) {
    const unsigned place = place_of_values(n, n_tiles_);
    wait(place);
    const std::uint64_t values = swizzled_matrix<128>(shared_address(shared_.slots[slot(place)]));
    hold_registers(sums_);
    begin_products();
#pragma unroll
    for (int k = 0; k < kTileTokens / 16; ++k) add_values(sums_, p + 4 * k, values + step(k, D));
    commit_products();
  }
  // Returns the offset of a matrix's columns from 16 k on, in units of 16 bytes.
  static __device__ __forceinline__ constexpr std::uint64_t step(int k, int n_rows) {
    return static_cast<std::uint64_t>(k / 4 * (n_rows * 128 / 16) + k % 4 * 2);
  }

  __device__ __forceinline__ bool weigh(float (&s)[64], int n, float (&shrink)[2]) {
    const bool is_rows = n >= n_pages_;
    const PromptItem& item = block_.item;
    const int first =
        is_rows ? item.first_token + (item.tile + n - n_pages_) * kTileTokens : (item.page + n) * kTileTokens;
    const SeenByAll all = block_.all[group_][is_rows ? 1 : 0];
    if (first + kTileTokens > all.end || first < all.first) {
      int low[2], high[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int limit = limit_of(args_, item, row_ + 8 * i);
        const int sealed_end = block_.sealed_end[row_ + 8 * i];
        find_columns(args_, item, limit, sealed_end, is_rows, first, low[i], high[i]);
      }
      mask_scores(s, low, high, lane_ % 4);
    }
    return weigh_scores<Weight>(s, args_.scale_log2, args_.slack_log2, rows_, shrink);
  }
  // Packs weights into A operands of 16 tokens each. A lane has columns 2t and 2t + 1 of rows g and g + 8,
  // then columns 2t + 8 and 2t + 9.
  static __device__ __forceinline__ void pack(const float (&s)[64], std::uint32_t (&p)[32]) {
#pragma unroll
    for (int i = 0; i < 32; ++i) p[i] = pack_half2(s[2 * i], s[2 * i + 1]);
  }

  // Joins the parts of a divided block. Returns false if another CTA has the other part and stores the block.
  __device__ __forceinline__ bool joined(int thread) {
    const int split = block_.item.split;
    if (split < 0) return true;
    const int place = (split * args_.n_heads + block_.head) * Shape::kGroups + group_;
    return join_halves<D, kGroupThreads>(
        args_.halves + static_cast<std::int64_t>(place) * HalfSums<D, kGroupThreads>::kNumbers,
        args_.claims + 2 * place, kFirstGroupBarrier + group_, thread, shared_.claims[group_], rows_, sums_);
  }

  const PromptArgs& args_;
  HalfShared<D>& shared_;
  const BlockSight<Shape>& block_;
  unsigned base_;
  int group_, lane_, row_, n_pages_, n_tiles_;
  std::uint64_t queries_;
  RowSums rows_;
  float sums_[D / 2] = {};
};

// Computes the attention of one group's rows in all blocks of the CTA.
template <int D, class Weight>
__device__ __forceinline__ void attend_blocks(const PromptArgs& args, HalfShared<D>& shared, int group,
                                              int thread) {
  RingPlace<2> place;
  unsigned base = 0;
  for (;; place.advance()) {
    barrier_wait(shared_address(&shared.block_full[place.slot]), place.parity);
    const PromptItem& item = shared.blocks[place.slot].item;
    if (item.n_rows == 0) return;
    const unsigned n_slots = 2 * tiles_of(item);
    HalfBlock<D, Weight>(args, shared, place.slot, base, group, thread).attend(thread);
    base += n_slots;
    __syncwarp();
    if (thread % 32 == 0) barrier_arrive(shared_address(&shared.block_free[place.slot]));
  }
}

template <int D, class Weight>
__global__ void __launch_bounds__(HalfShape<D>::kThreads, 1)
    half_prompt_kernel(const __grid_constant__ PromptArgs args) {
  using Shape = HalfShape<D>;
  extern __shared__ unsigned char memory[];
  auto& shared = *reinterpret_cast<HalfShared<D>*>(memory + (1024 - shared_address(memory) % 1024) % 1024);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    constexpr int kWarps = Shape::kGroups * 4;
    for (int i = 0; i < Shape::kSlots; ++i) {
      barrier_init(shared_address(&shared.slot_full[i]), 1);
      barrier_init(shared_address(&shared.slot_free[i]), kWarps);
    }
    for (int i = 0; i < 2; ++i) {
      barrier_init(shared_address(&shared.block_full[i]), kQueryWarps);
      barrier_init(shared_address(&shared.block_free[i]), kWarps + 1);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  // Predecessors make the tiles and the plan.
  wait_for_predecessors();
  __syncthreads();
  // The shuffle tells the compiler that a warp's threads have one group.
  const int group = __shfl_sync(~0U, thread / kGroupThreads, 0);
  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Shape::kProducerRegisters));
    const int warp = thread / 32 - 1, lane = thread % 32;
    if (thread < 32) {
      if (thread == 0) copy_half_tiles<D>(args, shared);
    } else {
      const auto await_none = [](const PromptItem&, int) {};
      prepare_blocks(args, shared, warp, lane, await_none, [&](PromptItem item, int head, int slot) {
        constexpr int kRowsAtOnce = 32 / (D / 8);
        load_queries<D>(
            args, item, head, warp * kRowsAtOnce, Shape::kRows, kQueryWarps * kRowsAtOnce, lane,
            [&](int row, int octet, const uint4& eight) {
              unsigned char* of_group = shared.queries[slot] + row / kGroupRows * Shape::kGroupBytes;
              *reinterpret_cast<uint4*>(of_group + half_place<kGroupRows>(row % kGroupRows, octet * 8)) =
                  eight;
            });
      });
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Shape::kConsumerRegisters));
    attend_blocks<D, Weight>(args, shared, group - 1, thread % kGroupThreads);
  }
}

}  // namespace kvant::cuda
