// Computes prefill attention in 8-bit integers with products of warpgroups (sm_90a).
//
// A CTA processes blocks of query tokens of a KV head's query heads in turn. Warps of the first warpgroup
// copy tiles of keys and values into a ring in shared memory, and quantize the next block's queries to INT8.
// Each of the other three warpgroups has 64 of the block's rows, all of one head. While one warpgroup
// computes weights, the products of the other warpgroups keep the tensor cores busy. Sums of values become
// F32 after every tile, so each row of a tile can have a scale for its weights.
#pragma once

#include <type_traits>

#include "device/cuda/prompt/integer_rows.cuh"
#include "device/cuda/prompt/integer_wgmma.cuh"
#include "device/cuda/prompt/join_parts.cuh"
#include "device/cuda/prompt/kept_attention.cuh"
#include "device/cuda/prompt/mixed_blocks.cuh"

namespace kvant::cuda {

template <int D>
struct PromptShape {
  static constexpr int kGroups = 3;
  static constexpr int kRows = kGroups * kGroupRows;
  static constexpr int kThreads = (kGroups + 1) * kGroupThreads;
  static constexpr int kStages = 4;
  static constexpr int kStageBytes = (PromptTile<D>::kBytes + 1023) / 1024 * 1024;
  // If registers suffice, the next tile's scores are computed right after a tile's values.
  static constexpr bool kScoresAhead = D == 64;
  // With kScoresAhead, scores start as F32 numbers. Otherwise their registers also hold sums of values, so
  // scores start from zero.
  using Scores = std::conditional_t<kScoresAhead, RoundedScores, IntegerScores>;
  // All groups together may have no more registers than the CTA has at launch, which is 128 per thread.
  static constexpr int kConsumerRegisters = 160;
  static constexpr int kProducerRegisters = 32;
  static_assert(kGroups * kConsumerRegisters + kProducerRegisters <= (kGroups + 1) * 128);
};

// Holds a block that the query warps have prepared.
template <int D>
struct PreparedBlock : MixedSight<PromptShape<D>> {
  float scale[PromptShape<D>::kRows];  // [row], scales of queries, including the softmax scale and log2(e)
  // The keys' centre adds these numbers to the scores of each row, in units of log 2.
  float shift[PromptShape<D>::kRows];
  alignas(8) float channels[2 * D];  // [2][D]: the values' centres, then their scales
};

// A lane of a query warp has eight channels of each row that it quantizes. At most kOctetsAwaited loads of
// eight channels are in flight, and kOctetsAtOnce start together.
inline constexpr int kOctetsAwaited = 16;
inline constexpr int kOctetsAtOnce = 4;

// Holds a CTA's shared memory.
template <int D>
struct PromptShared {
  using Shape = PromptShape<D>;
  unsigned char stages[Shape::kStages][Shape::kStageBytes];
  unsigned char queries[2][Shape::kRows * D];
  PreparedBlock<D> blocks[2];
  uint4 octets[kQueryWarps][kOctetsAwaited][32];  // [warp][load][lane]: queries in flight to the query warps
  std::uint64_t tile_full[Shape::kStages], tile_free[Shape::kStages];
  std::uint64_t block_full[2], block_free[2], near_end;
  MixedWork work;
  int claims[Shape::kGroups];
};

template <class Kept>
inline constexpr bool kKeepsRows = std::is_same_v<Kept, KeptRows>;

// Copies the tiles of all blocks into the ring. One thread runs this function.
template <int D, class Kept>
__device__ __forceinline__ void copy_tiles(const PromptArgs& args, const Kept& kept,
                                           PromptShared<D>& shared) {
  using Tile = PromptTile<D>;
  static_assert(HalfTile<D>::kSideBytes <= PromptShape<D>::kStageBytes);
  RingPlace<2> block;
  RingPlace<PromptShape<D>::kStages> stage;
  for (;; block.advance()) {
    barrier_wait(shared_address(&shared.block_full[block.slot]), block.parity);
    const PromptItem item = shared.blocks[block.slot].item;
    const int head = shared.blocks[block.slot].head;
    barrier_arrive(shared_address(&shared.block_free[block.slot]));
    if (item.n_rows == 0) return;
    const auto copy_bytes = [&](const unsigned char* from, std::uint32_t bytes) {
      barrier_wait(shared_address(&shared.tile_free[stage.slot]), stage.parity ^ 1);
      const std::uint32_t full = shared_address(&shared.tile_full[stage.slot]);
      expect_bytes(full, bytes);
      copy_tile(shared_address(shared.stages[stage.slot]), from, bytes, full);
      stage.advance();
    };
    const auto copy = [&](int slot) {
      copy_bytes(
          args.tiles + (static_cast<std::int64_t>(slot) * args.n_kv_heads + head / args.group) * Tile::kBytes,
          Tile::kBytes);
    };
    const int n_pages = item.end_page - item.page;
    const int n_tiles = tiles_of(item);
    for (int n = 0; n < n_tiles; ++n) {
      if (n > 0 && n == n_tiles - kNearEnd) barrier_arrive(shared_address(&shared.near_end));
      copy(n < n_pages ? item.page_slot + item.page + n : item.row_slot + item.tile + n - n_pages);
    }
    if constexpr (kKeepsRows<Kept>) {
      const int n_kept = kept_tiles_of(args, kept, item, head);
      for (int n = 0; n < n_kept; ++n) {
        const unsigned char* from = kept_tile<D>(args, kept, item, head, n);
        copy_bytes(from, HalfTile<D>::kSideBytes);
        copy_bytes(from + HalfTile<D>::kSideBytes, HalfTile<D>::kSideBytes);
      }
    }
  }
}

// This many lanes share a row of queries. If fewer lanes share a row, they exchange fewer values. A rotation
// needs a lane for every eight channels of the row.
template <int D, bool MayTurn>
inline constexpr int kLanesOfQueries = MayTurn ? D / 8 : 4;

// Quantizes a lane's N groups of eight channels to INT8 and stores the rows' scales. octet(i) returns group
// i. A lane's rows are Step apart.
template <int D, bool IsHalf, bool MayTurn, int Step, int N, class Octet>
__device__ __forceinline__ void put_queries(const PromptArgs& args, int row, int lane, const Octet& octet,
                                            unsigned char* queries, PreparedBlock<D>& block) {
  constexpr int kLanes = kLanesOfQueries<D, MayTurn>;
  constexpr int kOfRow = D / 8 / kLanes;
  const int first = lane % kLanes;
  float largest[N / kOfRow];
  quantize_queries<D, kLanes, IsHalf, MayTurn, N>(args, lane, octet, largest, [&](int i, const uint2& bytes) {
    const int channel = (first + i % kOfRow * kLanes) * 8;
    *reinterpret_cast<uint2*>(queries + swizzled<D>(row + i / kOfRow * Step, channel)) = bytes;
  });
  if (first > 0) return;
#pragma unroll
  for (int i = 0; i < N / kOfRow; ++i)
    block.scale[row + i * Step] = largest[i] * (1.0F / kByteMax) * args.scale_log2;
}

// Returns a lane's first eight channels of a row of the group, or of the block's last row if that row is
// earlier.
template <int D, int Lanes>
__device__ __forceinline__ const unsigned short* find_query(const PromptArgs& args, const PromptItem& item,
                                                            const GroupRows& rows, int row, int lane) {
  const std::int64_t in_item = min(rows.first + row, item.n_rows - 1);
  return static_cast<const unsigned short*>(args.q.data) + (item.first_row + in_item) * args.q.token_stride +
         rows.head * args.q.head_stride + lane % Lanes * 8;
}

// Moves the rows that a query warp quantizes through shared memory. Registers are scarce, so loads go to
// shared memory, and each lane later reads the data that the lane itself has requested.
template <int D, bool MayTurn>
struct AwaitedQueries {
  static constexpr int kLanes = kLanesOfQueries<D, MayTurn>;
  static constexpr int kOfRow = D / 8 / kLanes;
  static constexpr int kStep = 32 / kLanes;
  static constexpr int kOctets = kGroupRows / kStep * kOfRow;  // groups of eight channels of a lane
  static_assert(kQueryWarps == PromptShape<D>::kGroups && kOctets % kOctetsAtOnce == 0 &&
                kOctetsAtOnce % kOfRow == 0);

  const unsigned short* from;  // the next row to request
  int rows_left;               // rows from `from` to the block's last row
  std::uint32_t slots;
  unsigned next;  // the next group of eight channels to request

  __device__ __forceinline__ void await(const PromptArgs& args) {
    if (next < kOctets) {
#pragma unroll
      for (int i = 0; i < kOctetsAtOnce; ++i) {
        copy_16(slots + (next + i) % kOctetsAwaited * 512, from + i % kOfRow * kLanes * 8);
        if ((i + 1) % kOfRow != 0) continue;
        rows_left -= kStep;
        // After the block's last row, the last row is read again.
        if (rows_left > 0) from += kStep * args.q.token_stride;
      }
    }
    next += kOctetsAtOnce;
    commit_copies();
  }
  __device__ __forceinline__ void begin(const PromptArgs& args, const PromptItem& item, int head, int warp,
                                        int lane, PromptShared<D>& shared) {
    const GroupRows rows = rows_of_group(args, item, head, warp);
    from = find_query<D, kLanes>(args, item, rows, lane / kLanes, lane);
    rows_left = item.n_rows - rows.first - lane / kLanes;
    slots = shared_address(&shared.octets[warp][0][lane]);
    next = 0;
#pragma unroll
    for (int i = 0; i < kOctetsAwaited; i += kOctetsAtOnce) await(args);
  }
  template <bool IsHalf>
  __device__ __forceinline__ void quantize(const PromptArgs& args, int warp, int lane, unsigned char* queries,
                                           PreparedBlock<D>& block) {
    int row = warp * kGroupRows + lane / kLanes;
#pragma unroll 1
    for (unsigned begin = 0; begin < kOctets; begin += kOctetsAtOnce) {
      wait_for_copies<kOctetsAwaited / kOctetsAtOnce - 1>();
      constexpr int kTogether = kOfRow > 2 ? kOfRow : 2;
#pragma unroll
      for (int i = 0; i < kOctetsAtOnce; i += kTogether) {
        const std::uint32_t slot = slots + (begin + i) % kOctetsAwaited * 512;
        put_queries<D, IsHalf, MayTurn, kStep, kTogether>(
            args, row, lane, [&](int j) { return load_shared_16(slot + j * 512); }, queries, block);
        row += kTogether / kOfRow * kStep;
      }
      await(args);
    }
  }
};

// Computes the numbers that the keys' centre adds to the scores of a query warp's rows. Only the LSE needs
// the result.
template <int D, bool IsHalf, bool MayTurn>
__device__ __forceinline__ void find_shifts(const PromptArgs& args, const PromptItem& item, int head,
                                            int warp, int lane, PreparedBlock<D>& block) {
  constexpr int kLanesOfRow = D / 8;
  const int octet = lane % kLanesOfRow;
  const float* centres = channels_of<D>(args, item, head) + octet * 8;
  const GroupRows rows = rows_of_group(args, item, head, warp);
#pragma unroll 1
  for (int row = lane / kLanesOfRow; row < kGroupRows; row += 32 / kLanesOfRow) {
    float x[8];
    unpack_octet<IsHalf>(
        *reinterpret_cast<const uint4*>(find_query<D, kLanesOfRow>(args, item, rows, row, lane)), x);
    if (MayTurn && args.q_hadamard != 0) rotate_channels<kLanesOfRow>(lane, x);
    float shift = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) shift = fmaf(x[j], centres[j], shift);
#pragma unroll
    for (int step = 1; step < kLanesOfRow; step *= 2) shift += __shfl_xor_sync(~0U, shift, step);
    if (octet == 0) block.shift[warp * kGroupRows + row] = shift * args.scale_log2;
  }
}

// Quantizes a CTA's first block, for which all warps of the CTA wait. Each group quantizes its own rows.
template <int D, bool IsHalf, bool MayTurn>
__device__ __forceinline__ void quantize_first_rows(const PromptArgs& args, PromptShared<D>& shared,
                                                    int group, int thread) {
  const MixedWork work = find_work(args, static_cast<int>(blockIdx.x));
  if (work.item < 0) return;
  const PromptItem item = args.items[work.item];
  constexpr int kLanes = kLanesOfQueries<D, MayTurn>;
  constexpr int kOfRow = D / 8 / kLanes;
  constexpr int kStep = kGroupThreads / kLanes;
  // A lane loads this many groups of eight channels, all in flight together.
  constexpr int kOctets = kGroupRows / kStep * kOfRow;
  const int lane = thread % 32;
  const int first = thread / kLanes;
  const GroupRows rows = rows_of_group(args, item, work.set * args.mixed, group);
  uint4 octets[kOctets];
#pragma unroll
  for (int i = 0; i < kOctets; ++i)
    octets[i] = *reinterpret_cast<const uint4*>(
        find_query<D, kLanes>(args, item, rows, first + i / kOfRow * kStep, lane) + i % kOfRow * kLanes * 8);
  put_queries<D, IsHalf, MayTurn, kStep, kOctets>(
      args, group * kGroupRows + first, lane, [&](int i) { return octets[i]; }, shared.queries[0],
      shared.blocks[0]);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  named_barrier(kFirstGroupBarrier + group, kGroupThreads);
}

// Computes the attention of one group's rows in all blocks of the CTA. With kept rows (kept_rows.h),
// protected tokens of pages are masked in INT8 tiles. Half-precision tiles of protected tokens come after the
// block's other tiles, and take two ring slots each.
template <int D, class Weight, bool IsHalf, bool MayTurn, class Kept>
__device__ __forceinline__ void attend(const PromptArgs& args, const Kept& kept, PromptShared<D>& shared,
                                       int group, int thread) {
  using Tile = PromptTile<D>;
  using Scores = typename PromptShape<D>::Scores;
  const int lane = thread % 32;
  const int pair = lane % 4;
  const int row = group * kGroupRows + row_of(thread);
  RingPlace<2> place;
  RingPlace<PromptShape<D>::kStages> stage;
  quantize_first_rows<D, IsHalf, MayTurn>(args, shared, group, thread);
  for (;; place.advance()) {
    barrier_wait(shared_address(&shared.block_full[place.slot]), place.parity);
    const PreparedBlock<D>& block = shared.blocks[place.slot];
    if (block.item.n_rows == 0) return;
    const float query_scale[2] = {block.scale[row], block.scale[row + 8]};
    const std::uint64_t queries =
        swizzled_matrix<D>(shared_address(shared.queries[place.slot] + group * kGroupRows * D));
    std::uint32_t s[64], p[16];
    float sums[D / 2] = {};
    float factor[2];
    TileExponents of;
    RowSums rows;

    const auto begin_scores = [&] {
      const std::uint64_t keys = swizzled_matrix<D>(shared_address(shared.stages[stage.slot]));
      multiply_scores<Scores::kStartBits != 0>(s, queries, keys);
#pragma unroll
      for (int k = 1; k < D / 32; ++k) multiply_scores<true>(s, queries + 2 * k, keys + 2 * k);
      commit_products();
    };
    const auto reset_scores = [&] {
#pragma unroll
      for (int i = 0; i < 64; ++i) s[i] = Scores::kStartBits;
      hold_registers(s);
    };
    const auto begin_values = [&](std::uint32_t(&o)[D / 2], int slot) {
      const std::uint64_t values =
          swizzled_matrix<kTileTokens>(shared_address(shared.stages[slot] + Tile::kValues));
      multiply_values<false>(o, p, values);
#pragma unroll
      for (int k = 1; k < 4; ++k) multiply_values<true>(o, p + 4 * k, values + 2 * k);
      commit_products();
    };
    const auto wait_for_tile = [&] {
      barrier_wait(shared_address(&shared.tile_full[stage.slot]), stage.parity);
    };
    const auto free_tile = [&](int slot) {
      if (lane == 0) barrier_arrive(shared_address(&shared.tile_free[slot]));
    };
    const auto note = [&]() -> const TileNote& {
      return *reinterpret_cast<const TileNote*>(shared.stages[stage.slot] + Tile::kNote);
    };
    // Returns whether some tokens of the tile are hidden from some row of the group. The note is read while
    // the tile's scores are computed.
    const auto is_cut = [&] {
      const int first = note().first_token;
      const SeenByAll all = block.all[group][note().is_rows];
      return first + kTileTokens > all.end || first < all.first;
    };
    // Returns a mask of the tile's tokens that are kept rows. The mask is requested while the tile's scores
    // are computed.
    const auto left_out = [&] {
      if constexpr (kKeepsRows<Kept>) {
        if (note().is_rows == 0)
          return kept_mask(kept, block.item.seq, block.head / args.group, note().first_token / kTileTokens);
      }
      return make_uint4(0, 0, 0, 0);
    };
    const auto weigh_tile = [&](bool cut, const uint4& mask) {
      if (cut) {
        const int first = note().first_token;
        const bool is_rows = note().is_rows != 0;
        int low[2], high[2];
        const int in_item = block.rows[group].first + row % kGroupRows;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int limit = limit_of(args, block.item, in_item + 8 * i);
          const int sealed_end = block.sealed_end[row + 8 * i];
          find_columns(args, block.item, limit, sealed_end, is_rows, first, low[i], high[i]);
        }
        mask_scores<Scores>(s, low, high, pair);
      }
      if constexpr (kKeepsRows<Kept>) {
        if ((mask.x | mask.y | mask.z | mask.w) != 0) mask_kept<Scores>(s, mask, pair);
      }
      of = find_exponents<Scores>(s, query_scale, note().key_scale, rows, sums);
      make_weights<Weight, Scores>(s, of, p);
    };
    const auto add_values = [&](const std::uint32_t(&o)[D / 2]) {
#pragma unroll
      for (int i = 0; i < D / 2; ++i) sums[i] = fmaf(__uint_as_float(o[i]), factor[i / 2 % 2], sums[i]);
    };

    const int n_seen = block.seen_tiles[group];
    const TileRange hidden = block.hidden_tiles[group];
    int n = 0;
    // Releases the tiles before tile `end` that the group has skipped, because they are hidden from the
    // group.
    const auto let_go = [&](int end) {
      for (; n < end; ++n, stage.advance()) {
        wait_for_tile();
        free_tile(stage.slot);
      }
    };
    const auto pass_hidden = [&] {
      if (n == hidden.first) let_go(hidden.end);
    };
    if constexpr (PromptShape<D>::kScoresAhead) {
      std::uint32_t o[D / 2];
      pass_hidden();
      reset_scores();
      wait_for_tile();
      begin_products();
      begin_scores();
      bool cut = is_cut();
      uint4 mask = left_out();
      finish_products<0>();
      hold_registers(s);
      weigh_tile(cut, mask);
      add_weights(of, p, note().value_scale, rows, factor);
      while (++n < n_seen) {
        const int before = stage.slot;
        stage.advance();
        pass_hidden();
        reset_scores();
        hold_registers(p);
        wait_for_tile();
        begin_products();
        begin_values(o, before);
        begin_scores();
        cut = is_cut();
        mask = left_out();
        finish_products<1>();
        hold_registers(o);
        hold_registers(p);
        free_tile(before);
        add_values(o);
        finish_products<0>();
        hold_registers(s);
        weigh_tile(cut, mask);
        add_weights(of, p, note().value_scale, rows, factor);
      }
      hold_registers(p);
      begin_products();
      begin_values(o, stage.slot);
      finish_products<0>();
      hold_registers(o);
      hold_registers(p);
      free_tile(stage.slot);
      stage.advance();
      add_values(o);
    } else {
      // Sums of values use the registers of scores. While the sums are computed, the group waits for the next
      // tile.
      auto& o = reinterpret_cast<std::uint32_t(&)[D / 2]>(s);
      // At tile `stop` either the range of hidden tiles begins, or the group's tiles end.
      int stop = hidden.first < hidden.end ? hidden.first : n_seen;
      const auto find_tile = [&] {
        if (n == stop) {
          if (n == n_seen) return false;
          let_go(hidden.end);
          stop = n_seen;
        }
        wait_for_tile();
        return true;
      };
      bool is_there = find_tile();
      while (is_there) {
        begin_products();
        begin_scores();
        const bool cut = is_cut();
        const uint4 mask = left_out();
        finish_products<0>();
        hold_registers(s);
        weigh_tile(cut, mask);
        hold_registers(p);
        begin_products();
        begin_values(o, stage.slot);
        add_weights(of, p, note().value_scale, rows, factor);
        const int slot = stage.slot;
        stage.advance();
        ++n;
        is_there = find_tile();
        finish_products<0>();
        hold_registers(o);
        hold_registers(p);
        free_tile(slot);
        add_values(o);
      }
    }
    let_go(tiles_of(block.item));
    if constexpr (kKeepsRows<Kept>)
      attend_kept<D>(args, kept, shared, place.slot, group, thread, stage, rows, sums);
    bool is_whole = true;
    int same_thread = thread, same_group = group, slot = place.slot;
    // With heads of 128, values derived from `thread` have no registers while tiles are processed. This code
    // therefore reads the thread's number again.
    if constexpr (!PromptShape<D>::kScoresAhead) {
      asm volatile("mov.u32 %0, %%tid.x;" : "=r"(same_thread), "+r"(slot));
      same_group = same_thread / kGroupThreads - 1;
      same_thread %= kGroupThreads;
    }
    const PreparedBlock<D>& same = shared.blocks[slot];
    if (same.item.split >= 0) {
      constexpr int kGroups = PromptShape<D>::kGroups;
      is_whole = join_parts<D, kGroupThreads>(args, same.item, same.set * kGroups + same_group,
                                              args.n_sets * kGroups, kFirstGroupBarrier + same_group,
                                              same_thread, shared.claims[same_group], rows, sums);
    }
    if (is_whole) {
      const int in_group = row_of(same_thread);
      const float* shift = same.shift + same_group * kGroupRows + in_group;
      store_integer_rows<D, IsHalf, MayTurn>(args, same.item, same.rows[same_group].head,
                                             same.rows[same_group].first + in_group, same_thread % 4, rows,
                                             sums, same.channels, [&](int i) { return shift[8 * i]; });
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&shared.block_free[place.slot]));
  }
}

template <int D, class Weight, bool IsHalf, bool MayTurn, class Kept>
__global__ void __launch_bounds__(PromptShape<D>::kThreads, 1)
    prompt_kernel(const __grid_constant__ PromptArgs args, const __grid_constant__ Kept kept) {
  using Shape = PromptShape<D>;
  extern __shared__ unsigned char memory[];
  auto& shared = *reinterpret_cast<PromptShared<D>*>(memory + (1024 - shared_address(memory) % 1024) % 1024);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    constexpr int kWarps = Shape::kGroups * 4;
    for (int i = 0; i < Shape::kStages; ++i) {
      barrier_init(shared_address(&shared.tile_full[i]), 1);
      barrier_init(shared_address(&shared.tile_free[i]), kWarps);
    }
    for (int i = 0; i < 2; ++i) {
      barrier_init(shared_address(&shared.block_full[i]), kQueryWarps);
      barrier_init(shared_address(&shared.block_free[i]), kWarps + 1);
    }
    barrier_init(shared_address(&shared.near_end), 1);
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
      if (thread == 0) copy_tiles<D>(args, kept, shared);
    } else {
      bool is_first = true;
      AwaitedQueries<D, MayTurn> awaited;
      const auto await = [&](const PromptItem& item, int head) {
        if (!is_first) awaited.begin(args, item, head, warp, lane, shared);
      };
      prepare_mixed_blocks(args, shared, warp, lane, await, [&](const PromptItem& item, int head, int slot) {
        PreparedBlock<D>& block = shared.blocks[slot];
        const float* values = channels_of<D>(args, item, head) + D;
        for (int i = warp * 32 + lane; i < 2 * D; i += kQueryWarps * 32) block.channels[i] = values[i];
        if (!is_first) awaited.template quantize<IsHalf>(args, warp, lane, shared.queries[slot], block);
        is_first = false;
        if (args.lse != nullptr) find_shifts<D, IsHalf, MayTurn>(args, item, head, warp, lane, block);
      });
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Shape::kConsumerRegisters));
    attend<D, Weight, IsHalf, MayTurn>(args, kept, shared, group - 1, thread % kGroupThreads);
  }
}

}  // namespace kvant::cuda
