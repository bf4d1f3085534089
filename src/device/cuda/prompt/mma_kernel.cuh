// Computes prefill attention in half precision with products of warps (mma.sync). The kernel serves GPUs
// other than Hopper, heads of 256 and 512, and capped scores, where half_kernel.cuh does not apply.
//
// A CTA processes blocks of query rows of a head in turn. Each warp has some of the rows, with queries in
// shared memory and outputs in registers (FlashAttention-2, section 3.3). Tiles arrive in steps of 64 tokens,
// keys before values, in a ring of slots. Weights stay in the registers of scores, as the operand of the
// products with values.
#pragma once

#include "device/cuda/prompt/half_rows.cuh"
#include "device/cuda/prompt/half_weigh.cuh"
#include "device/cuda/prompt/warp_blocks.cuh"

namespace kvant::cuda {

static_assert(kStepTokens == kPanelColumns);

// Says how a CTA divides a block among its warps. A warp has RowTiles tiles of 16 rows. With two tiles, the
// warp reads keys and values only once for both tiles. `Sharers` warps have the same rows if registers do not
// hold all outputs. Each of these warps then computes all scores, but the outputs of only some channels.
template <int D, int RowTiles, int Warps, int Sharers = 1>
struct MmaShape {
  static constexpr int kHeadDim = D;
  // A warp has the outputs of this many channels.
  static constexpr int kSumChannels = D / Sharers;
  static constexpr int kSharers = Sharers;
  static constexpr int kRowTiles = RowTiles;
  static constexpr int kWarps = Warps;
  static constexpr int kWarpRows = 16 * RowTiles;
  static constexpr int kRows = Warps / Sharers * kWarpRows;
  static constexpr int kThreads = Warps * 32;
  static constexpr int kSlotBytes = kStepTokens * D * 2;
  static constexpr int kWarpQueryBytes = kWarpRows * D * 2;
  static constexpr int kQueryBytes = Warps / Sharers * kWarpQueryBytes;
  // Two CTAs that share a block join this many parts of the block separately.
  static constexpr int kParts = Warps * RowTiles;
  // For short steps, one barrier for a step's keys and values is faster than a barrier for each.
  static constexpr bool kStepAtOnce = D == 64;
  static constexpr int kLeastSlots = kStepAtOnce ? 4 : 2;
  static_assert(kLeastSlots <= kMostSlots);
  // Registers limit an SM to this many CTAs, at 255 registers a thread.
  static constexpr int kMostCtas = 8 / Warps;
};

template <class Shape>
using MmaShared = WarpBlock<Shape::kWarps>;

// StepCopies copies a block's keys and values into the ring. The order is keys of step 0, values of step 0,
// keys of step 1, and so on. All threads of the CTA call begin(), because each thread copies a part.
template <class Shape>
class StepCopies {
 public:
  __device__ __forceinline__ StepCopies(const PromptArgs& args, const MmaShared<Shape>& shared,
                                        std::uint32_t ring, int n_slots)
      : args_(args), shared_(shared), ring_(ring), n_slots_(n_slots), slot_(ring) {}

  // Starts the next group of copies. After the last step the group is empty.
  __device__ __forceinline__ void begin() {
    if (next_ < 2 * shared_.n_steps) copy();
    commit_copies();
    ++next_;
    slot_ += Shape::kSlotBytes;
    if (slot_ == ring_ + n_slots_ * Shape::kSlotBytes) slot_ = ring_;
  }

 private:
  using Tile = HalfTile<Shape::kHeadDim>;
  static constexpr int kHalfPanel = kStepTokens * 128;  // bytes of a step in a panel of a tile's keys

  __device__ __forceinline__ void copy() {
    const int step = next_ / 2, half = step % 2;
    const unsigned char* from = tile_of_step(args_, shared_.item, shared_.head, step, Tile::kBytes);
    const int thread = static_cast<int>(threadIdx.x);
    const bool is_value = next_ % 2 != 0;
    from += is_value ? Tile::kSideBytes + half * Shape::kSlotBytes : half * kHalfPanel;
#pragma unroll
    for (int first = 0; first < Shape::kSlotBytes; first += Shape::kThreads * 16) {
      const int byte = first + thread * 16;
      copy_16(slot_ + byte, from + byte + (is_value ? 0 : byte / kHalfPanel * kHalfPanel));
    }
  }

  const PromptArgs& args_;
  const MmaShared<Shape>& shared_;
  std::uint32_t ring_;
  int n_slots_;
  int next_ = 0;
  std::uint32_t slot_;
};

// Computes d[16 x 16] += a[16 x 16] b[16 x 16]. b[0] and b[1] are columns 0 to 7, and b[2] and b[3] are
// columns 8 to 15.
__device__ __forceinline__ void add_products(float* d, const std::uint32_t (&a)[4],
                                             const std::uint32_t (&b)[4]) {
  mma_f16(*reinterpret_cast<float(*)[4]>(d), a[0], a[1], a[2], a[3], b[0], b[1]);
  mma_f16(*reinterpret_cast<float(*)[4]>(d + 4), a[0], a[1], a[2], a[3], b[2], b[3]);
}

// MmaRows computes the attention of a warp's rows over the steps of a block.
template <class Shape, class Weight>
class MmaRows {
 public:
  static constexpr int kD = Shape::kHeadDim;
  static constexpr int kSums = Shape::kSumChannels;
  static constexpr int kTiles = Shape::kRowTiles;

  __device__ __forceinline__ MmaRows(std::uint32_t queries, int warp, int lane)
      : row_(warp / Shape::kSharers * Shape::kWarpRows + lane / 4),
        pair_(lane % 4),
        first_channel_(warp % Shape::kSharers * kSums) {
    // Rows lie in swizzled panels. Column 16 k of a panel is 32 k bytes further, before the swizzle.
    const int swizzle = lane % 8;
    queries_ = queries + (lane % 16) * 128 + ((lane / 16 ^ swizzle) << 4);
    matrix_ = (lane / 16 * 8 + lane % 8) * 128 + ((lane / 8 % 2 ^ swizzle) << 4);
#pragma unroll
    for (int m = 0; m < kTiles; ++m) rows_[m].reference[0] = rows_[m].reference[1] = kNoReference;
  }

  // Computes the scores of the step whose keys are in this slot.
  __device__ __forceinline__ void score(std::uint32_t slot) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int i = 0; i < kStepTokens / 2; ++i) s_[m][i] = 0;
    const std::uint32_t keys = slot + matrix_;
#pragma unroll
    for (int k = 0; k < kD / 16; ++k) {
      const std::uint32_t column = k % 4 * 32, panel = k / 4;
      std::uint32_t a[kTiles][4];
#pragma unroll
      for (int m = 0; m < kTiles; ++m)
        load_matrices(a[m], (queries_ ^ column) + panel * (Shape::kWarpRows * 128) + m * 16 * 128);
#pragma unroll
      for (int t = 0; t < kStepTokens / 16; ++t) {
        std::uint32_t b[4];
        load_matrices(b, (keys ^ column) + panel * (kStepTokens * 128) + t * 16 * 128);
#pragma unroll
        for (int m = 0; m < kTiles; ++m) add_products(&s_[m][8 * t], a[m], b);
      }
    }
  }

  // Turns scores into weights and rescales earlier sums if a reference rises. `first` is the step's first
  // token.
  __device__ __forceinline__ void weigh(const PromptArgs& args, const PromptItem& item,
                                        const WarpSight& sight, bool is_rows, int first) {
    const SeenByAll all = sight.all[is_rows ? 1 : 0];
    const bool is_cut = first + kStepTokens > all.end || first < all.first;
    const bool is_capped = args.softcap_log2 > 0;
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      if (is_capped) cap_scores(s_[m], args.softcap_log2, args.softcap_slope);
      if (is_cut) {
        int low[2], high[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int row = row_ + 16 * m + 8 * i;
          find_columns(args, item, limit_of(args, item, row), sealed_end_of(args, item, row), is_rows, first,
                       low[i], high[i]);
        }
        mask_scores(s_[m], low, high, pair_);
      }
      float shrink[2];
      const float scale = is_capped ? 1 : args.scale_log2;
      if (!weigh_scores<Weight>(s_[m], scale, args.slack_log2, rows_[m], shrink)) continue;
#pragma unroll
      for (int i = 0; i < kSums / 2; ++i) sums_[m][i] *= shrink[i / 2 % 2];
    }
  }

  // Adds the products of weights and values of the step in this slot to the sums.
  __device__ __forceinline__ void add_values(std::uint32_t slot) {
    const std::uint32_t values = slot + matrix_ + first_channel_ * 128;
#pragma unroll
    for (int k = 0; k < kStepTokens / 16; ++k) {
      std::uint32_t a[kTiles][4];
#pragma unroll
      for (int m = 0; m < kTiles; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i) a[m][i] = pack_half2(s_[m][8 * k + 2 * i], s_[m][8 * k + 2 * i + 1]);
#pragma unroll
      for (int c = 0; c < kSums / 16; ++c) {
        std::uint32_t b[4];
        load_matrices(b, (values ^ k * 32) + c * 16 * 128);
#pragma unroll
        for (int m = 0; m < kTiles; ++m) add_products(&sums_[m][8 * c], a[m], b);
      }
    }
  }

  // Stores the rows that no other CTA stores.
  __device__ __forceinline__ void store(const PromptArgs& args, const PromptItem& item, int head, int warp,
                                        int lane, int& claim) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
      if (stores_tile<Shape>(args, item, head, warp, m, lane, claim, rows_[m], sums_[m]))
        store_half_rows<kSums>(args, item, head, row_ + 16 * m, pair_, first_channel_, rows_[m], sums_[m]);
  }

 private:
  int row_, pair_, first_channel_;
  std::uint32_t queries_, matrix_;
  RowSums rows_[kTiles];
  float s_[kTiles][kStepTokens / 2];
  float sums_[kTiles][kSums / 2] = {};
};

// Loads the queries of a warp's own rows. Warps that share rows load them together.
template <class Shape>
__device__ __forceinline__ void load_warp_queries(const PromptArgs& args, const PromptItem& item, int head,
                                                  int warp, int lane, unsigned char* queries) {
  constexpr int kRowsAtOnce = 32 / kLanesOfQuery<Shape::kHeadDim>;
  constexpr int kOwnRows = Shape::kWarpRows / Shape::kSharers;
  const int first = warp / Shape::kSharers * Shape::kWarpRows;
  const int first_own = first + warp % Shape::kSharers * kOwnRows;
  load_queries<Shape::kHeadDim>(
      args, item, head, first_own, first_own + kOwnRows, kRowsAtOnce, lane,
      [&](int row, int octet, const uint4& eight) {
        *reinterpret_cast<uint4*>(queries + half_place<Shape::kWarpRows>(row - first, octet * 8)) = eight;
      });
  if constexpr (Shape::kSharers > 1) {
    __syncthreads();
  } else {
    __syncwarp();
  }
}

// Computes the attention of a block's rows. `ring` is the shared-memory address of the ring's slots. All
// threads of the CTA must call this function, because it contains barriers.
template <class Shape, class Weight>
__device__ __forceinline__ void attend_block(const PromptArgs& args, MmaShared<Shape>& shared,
                                             unsigned char* queries, std::uint32_t ring, int n_slots,
                                             int warp, int lane) {
  const PromptItem& item = shared.item;
  StepCopies<Shape> copies(args, shared, ring, n_slots);
  for (int i = 0; i < (Shape::kStepAtOnce ? 2 : n_slots - 1); ++i) copies.begin();
  load_warp_queries<Shape>(args, item, shared.head, warp, lane, queries);
  WarpSight& sight = shared.sight[warp];
  const int first_row = warp / Shape::kSharers * Shape::kWarpRows;
  if (lane == 0) sight = find_sight(args, item, first_row, first_row + Shape::kWarpRows - 1);
  __syncwarp();
  MmaRows<Shape, Weight> rows(shared_address(queries), warp, lane);
  std::uint32_t slot = ring;
  const auto next_slot = [&] {
    slot += Shape::kSlotBytes;
    if (slot == ring + n_slots * Shape::kSlotBytes) slot = ring;
  };
  // Waits for the oldest copy, or for both copies of a step, and starts as many new copies. After the barrier
  // no thread reads the slots that the new copies fill.
  const auto take_turn = [&] {
    if constexpr (Shape::kStepAtOnce) {
      wait_for_copies<0>();
      __syncthreads();
      copies.begin();
    } else {
      wait_for_oldest(n_slots);
      __syncthreads();
    }
    copies.begin();
  };
#pragma unroll 1
  for (int step = 0; step < shared.n_steps; ++step) {
    const auto [is_rows, first] = place_of_step(item, step);
    const SeenByAll any = sight.any[is_rows ? 1 : 0];
    const bool sees = first < any.end && first + kStepTokens > any.first;
    take_turn();
    if (sees) {
      rows.score(slot);
      rows.weigh(args, item, sight, is_rows, first);
    }
    next_slot();
    if constexpr (!Shape::kStepAtOnce) take_turn();
    if (sees) rows.add_values(slot);
    next_slot();
  }
  rows.store(args, item, shared.head, warp, lane, shared.claims[warp]);
}

// Computes the attention of blocks until no work is left. Dynamic shared memory holds each warp's queries,
// then the ring.
template <class Shape, class Weight>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kMostCtas)
    mma_prompt_kernel(const __grid_constant__ PromptArgs args, int n_slots) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ MmaShared<Shape> shared;
  take_blocks(args, shared, [&](int warp, int lane) {
    attend_block<Shape, Weight>(args, shared, memory + warp / Shape::kSharers * Shape::kWarpQueryBytes,
                                shared_address(memory) + Shape::kQueryBytes, n_slots, warp, lane);
  });
}

}  // namespace kvant::cuda
