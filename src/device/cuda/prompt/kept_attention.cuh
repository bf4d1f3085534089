// Computes the attention of a block's rows over kept rows (kept_rows.h), after the block's INT8 tiles
// (sm_90a). Products are half precision, and their weights join the sums of the INT8 tiles.
#pragma once

#include "device/cuda/prompt/half_weigh.cuh"
#include "device/cuda/prompt/half_wgmma.cuh"
#include "device/cuda/prompt/kept_tiles.cuh"
#include "device/cuda/prompt/mixed_blocks.cuh"

namespace kvant::cuda {

// Registers can hold scores of this many kept rows at a time.
inline constexpr int kKeptChunk = 64;

// Returns how many tiles of kept rows a block attends to. If a block is divided, only the part with the first
// page attends to kept rows.
__device__ __forceinline__ int kept_tiles_of(const PromptArgs& args, const KeptRows& kept,
                                             const PromptItem& item, int head) {
  if (item.page > 0 || item.n_sealed == 0) return 0;
  const std::int32_t* before = kept_before(args, kept, item.seq, head / args.group);
  const int pages = pages_seen(args, item.first_row + item.n_rows - 1, item.n_sealed);
  return (before[pages] - before[0] + kTileTokens - 1) / kTileTokens;
}

// Returns tile n of a block's kept rows.
template <int D>
__device__ __forceinline__ const unsigned char* kept_tile(const PromptArgs& args, const KeptRows& kept,
                                                          const PromptItem& item, int head, int n) {
  const int kv_head = head / args.group;
  const auto slot = static_cast<int>(first_tile(*kept_before(args, kept, item.seq, kv_head), item.seq)) + n;
  return kept.tiles + (static_cast<std::int64_t>(kv_head) * kept.slots + slot) * HalfTile<D>::kBytes;
}

// Masks a thread's scores of a page's protected tokens. Scores are arranged as in mask_scores().
template <class Numbers>
__device__ __forceinline__ void mask_kept(std::uint32_t (&s)[64], const uint4& mask, int pair) {
  const std::uint32_t words[4] = {mask.x >> 2 * pair, mask.y >> 2 * pair, mask.z >> 2 * pair,
                                  mask.w >> 2 * pair};
#pragma unroll
  for (int i = 0; i < 64; ++i)
    if ((words[i / 16] >> (i / 4 % 4 * 8 + i % 2) & 1) != 0) s[i] = Numbers::kMasked;
}

// Loads the queries of this thread's two rows as A operands of D / 16 steps.
template <int D>
__device__ __forceinline__ void load_kept_queries(const PromptArgs& args, const PromptItem& item, int head,
                                                  int row, int pair, std::uint32_t (&q)[D / 4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const auto* from = static_cast<const unsigned short*>(args.q.data) +
                       (item.first_row + row + 8 * i) * args.q.token_stride + head * args.q.head_stride +
                       2 * pair;
#pragma unroll
    for (int k = 0; k < D / 8; ++k) {
      float2 x{0, 0};
      if (row + 8 * i < item.n_rows)
        x = unpack_pair<false>(*reinterpret_cast<const std::uint32_t*>(from + 8 * k));
      const __half2 halves = __halves2half2(half_saturated(x.x), half_saturated(x.y));
      q[k / 2 * 4 + k % 2 * 2 + i] = *reinterpret_cast<const std::uint32_t*>(&halves);
    }
  }
}

// Computes the attention of a group's rows over the block's kept rows. `rows` and `sums` also hold the
// results of the block's INT8 tiles.
template <int D, class Shared, class Stage>
__device__ __forceinline__ void attend_kept(const PromptArgs& args, const KeptRows& kept, Shared& shared,
                                            int place, int group, int thread, Stage& stage, RowSums& rows,
                                            float (&sums)[D / 2]) {
  const auto& block = shared.blocks[place];
  const PromptItem& item = block.item;
  const int n_tiles = kept_tiles_of(args, kept, item, block.head);
  if (n_tiles == 0) return;
  const int lane = thread % 32, pair = lane % 4, row = group * kGroupRows + row_of(thread);
  const GroupRows of_group = block.rows[group];
  const std::int32_t* before = kept_before(args, kept, item.seq, block.head / args.group);
  const auto seen = [&](int of_row) { return before[block.sealed_end[of_row] / kTileTokens] - before[0]; };
  const int seen_by_any = seen(group * kGroupRows + kGroupRows - 1);
  const int high[2] = {seen(row), seen(row + 8)};
  // Weights of INT8 tiles were read as subnormal numbers, times 2^(kSumExponent - reference).
  const auto change_unit = [&](float factor) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      rows.mass[i] *= factor;
      rows.offset[i] *= factor;
    }
#pragma unroll
    for (int i = 0; i < D / 2; ++i) sums[i] *= factor;
  };
  constexpr float kUnit = 0x1p77F;
  static_assert(149 - kSumExponent == 77);
  change_unit(kUnit);
#pragma unroll
  for (int i = 0; i < 2; ++i) rows.reference[i] = fmaxf(rows.reference[i], kNoReference);
  const auto wait = [&](int slot, std::uint32_t parity) {
    barrier_wait(shared_address(&shared.tile_full[slot]), parity);
  };
  const auto matrix = [&](int slot, int byte) {
    return swizzled_matrix<128>(shared_address(shared.stages[slot] + byte));
  };
#pragma unroll 1
  for (int n = 0; n < n_tiles; ++n) {
    const Stage keys = stage;
    stage.advance();
    const Stage values = stage;
    stage.advance();
    wait(keys.slot, keys.parity);
    wait(values.slot, values.parity);
#pragma unroll 1
    for (int first = 0; first < kTileTokens; first += kKeptChunk) {
      const int begin = n * kTileTokens + first;
      if (begin >= seen_by_any) break;
      // Queries are loaded again for each chunk, because the assembler of CUDA 13.0 does not preserve
      // registers after wgmma has read them.
      std::uint32_t q[D / 4];
      load_kept_queries<D>(args, item, of_group.head, of_group.first + row_of(thread), pair, q);
      float s[kKeptChunk / 2] = {};
      hold_registers(s);
      hold_registers(q);
      begin_products();
#pragma unroll
      for (int k = 0; k < D / 16; ++k)
        add_values(s, q + 4 * k, matrix(keys.slot, k / 4 * kTileTokens * 128 + first * 128) + k % 4 * 2);
      commit_products();
      finish_products<0>();
      hold_registers(s);
      hold_registers(q);
      const int low[2] = {0, 0}, end[2] = {high[0] - begin, high[1] - begin};
      mask_scores(s, low, end, pair);
      float shrink[2];
      if (weigh_scores<ExactHalfWeight>(s, args.scale_log2, args.slack_log2, rows, shrink)) {
        rows.offset[0] *= shrink[0];
        rows.offset[1] *= shrink[1];
#pragma unroll
        for (int i = 0; i < D / 2; ++i) sums[i] *= shrink[i / 2 % 2];
      }
      std::uint32_t p[kKeptChunk / 4];
#pragma unroll
      for (int i = 0; i < kKeptChunk / 4; ++i) p[i] = pack_half2(s[2 * i], s[2 * i + 1]);
      hold_registers(sums);
      hold_registers(p);
      begin_products();
#pragma unroll
      for (int k = 0; k < kKeptChunk / 16; ++k)
        add_values(sums, p + 4 * k, matrix(values.slot, first / kPanelColumns * (D * 128)) + k * 2);
      commit_products();
      finish_products<0>();
      hold_registers(sums);
      hold_registers(p);
    }
    if (lane == 0) {
      barrier_arrive(shared_address(&shared.tile_free[keys.slot]));
      barrier_arrive(shared_address(&shared.tile_free[values.slot]));
    }
  }
  change_unit(1 / kUnit);
}

}  // namespace kvant::cuda
