// Computes prefill attention in 8-bit integers with products of warps (mma.sync). The kernel serves GPUs
// other than Hopper, and heads of 256, where prompt_kernel.cuh does not apply.
//
// Blocks, warps and steps are as in mma_kernel.cuh. Tiles and weights are as in prompt_kernel.cuh. A step's
// keys and values arrive together. Weights of a step are bytes relative to the row's largest weight in the
// step.
#pragma once

#include "device/cuda/prompt/integer_mma.cuh"
#include "device/cuda/prompt/integer_rows.cuh"
#include "device/cuda/prompt/warp_blocks.cuh"

namespace kvant::cuda {

// Says how a CTA divides a block among its warps. A warp has RowTiles tiles of 16 rows. With two tiles, the
// warp reads keys and values only once for both tiles.
template <int D, int RowTiles, int Warps, int Ctas>
struct IntegerMmaShape {
  static constexpr int kHeadDim = D;
  static constexpr int kSumChannels = D;
  static constexpr int kRowTiles = RowTiles;
  static constexpr int kWarps = Warps;
  static constexpr int kWarpRows = 16 * RowTiles;
  static constexpr int kRows = Warps * kWarpRows;
  static constexpr int kThreads = Warps * 32;
  static constexpr int kSlotBytes = StepTile<D>::kStepBytes;
  static constexpr int kWarpQueryBytes = kWarpRows * D;
  static constexpr int kQueryBytes = Warps * kWarpQueryBytes;
  // Two CTAs that share a block join this many parts of the block separately.
  static constexpr int kParts = Warps * RowTiles;
  static constexpr int kLeastSlots = 2;
  static constexpr int kMostCtas = Ctas;  // CTAs of an SM, limited by registers
};

// Holds a CTA's static shared memory.
template <class Shape>
struct IntegerMmaShared : WarpBlock<Shape::kWarps> {
  float query_scale[Shape::kRows];  // [row], including the softmax scale and log2(e)
  alignas(16) TileNote notes[kMostSlots];
};

// A row's reference starts with this value, which is below the exponent of every tile.
inline constexpr float kLeastReference = -0x1p126F;

// IntegerSteps copies the steps of a block into the ring. All threads of the CTA call begin(), because each
// thread copies a part.
template <class Shape>
class IntegerSteps {
 public:
  __device__ __forceinline__ IntegerSteps(const PromptArgs& args, IntegerMmaShared<Shape>& shared,
                                          std::uint32_t ring, int n_slots)
      : args_(args), shared_(shared), ring_(ring), n_slots_(n_slots) {}

  // Starts the next group of copies. After the last step the group is empty.
  __device__ __forceinline__ void begin() {
    if (next_ < shared_.n_steps) copy();
    commit_copies();
    ++next_;
    if (++slot_ == n_slots_) slot_ = 0;
  }

 private:
  using Tile = StepTile<Shape::kHeadDim>;

  __device__ __forceinline__ void copy() {
    const unsigned char* tile = tile_of_step(args_, shared_.item, shared_.head, next_, Tile::kBytes);
    const int thread = static_cast<int>(threadIdx.x);
    const unsigned char* from = tile + next_ % 2 * Tile::kStepBytes + thread * 16;
    const std::uint32_t to = ring_ + slot_ * Shape::kSlotBytes + thread * 16;
#pragma unroll
    for (int first = 0; first < Shape::kSlotBytes; first += Shape::kThreads * 16)
      copy_16(to + first, from + first);
    if (thread == 0) copy_16(shared_address(&shared_.notes[slot_]), tile + Tile::kNote);
  }

  const PromptArgs& args_;
  IntegerMmaShared<Shape>& shared_;
  std::uint32_t ring_;
  int n_slots_;
  int next_ = 0;
  int slot_ = 0;
};

// IntegerMmaRows computes the attention of a warp's rows over the steps of a block.
template <class Shape, class Weight>
class IntegerMmaRows {
 public:
  static constexpr int kD = Shape::kHeadDim;
  static constexpr int kTiles = Shape::kRowTiles;
  using Tile = StepTile<kD>;

  __device__ __forceinline__ IntegerMmaRows(std::uint32_t queries, int warp, int lane)
      : row_(warp * Shape::kWarpRows + lane / 4), pair_(lane % 4) {
    // Rows lie in swizzled panels. Byte 32 k of a row is 32 k bytes further, before the swizzle.
    constexpr int kRowBytes = Tile::kPanelBytes;
    const int row = lane % 8, mask = kRowBytes == 128 ? row : row / 2;
    queries_ = queries + (lane % 16) * kRowBytes + ((lane / 16 ^ mask) << 4);
    keys_ = (lane / 16 * 8 + row) * kRowBytes + ((lane / 8 % 2 ^ mask) << 4);
    values_ = Tile::kValues + (lane / 16 * 8 + row) * kStepTokens + ((lane / 8 % 2 ^ row / 2) << 4);
#pragma unroll
    for (int m = 0; m < kTiles; ++m) rows_[m].reference[0] = rows_[m].reference[1] = kLeastReference;
  }

  // Computes the scores of the step in this slot.
  __device__ __forceinline__ void score(std::uint32_t slot) {
    constexpr int kRowBytes = Tile::kPanelBytes;
    const std::uint32_t keys = slot + keys_;
#pragma unroll
    for (int k = 0; k < kD / 32; ++k) {
      const std::uint32_t column = k % 4 * 32, panel = k / 4;
      std::uint32_t a[kTiles][4];
#pragma unroll
      for (int m = 0; m < kTiles; ++m)
        load_matrices(a[m], (queries_ ^ column) + panel * (Shape::kWarpRows * 128) + m * 16 * kRowBytes);
#pragma unroll
      for (int t = 0; t < kStepTokens / 16; ++t) {
        std::uint32_t b[4];
        load_matrices(b, (keys ^ column) + panel * (kStepTokens * 128) + t * 16 * kRowBytes);
#pragma unroll
        for (int m = 0; m < kTiles; ++m)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            auto& s = reinterpret_cast<std::uint32_t(&)[4]>(s_[m][8 * t + 4 * half]);
            if (k == 0)
              multiply_s8(s, a[m], b[2 * half], b[2 * half + 1], kRounderBits);
            else
              add_s8(s, a[m], b[2 * half], b[2 * half + 1]);
          }
      }
    }
  }

  // Turns scores into weights and rescales earlier sums if the reference rises. `first` is the step's first
  // token.
  __device__ __forceinline__ void weigh_step(const PromptArgs& args, const IntegerMmaShared<Shape>& shared,
                                             const WarpSight& sight, bool is_rows, int first,
                                             const TileNote& note) {
    const SeenByAll all = sight.all[is_rows ? 1 : 0];
    const bool is_cut = first + kStepTokens > all.end || first < all.first;
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      if (is_cut) {
        int low[2], high[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int row = row_ + 16 * m + 8 * i;
          find_columns(args, shared.item, limit_of(args, shared.item, row),
                       sealed_end_of(args, shared.item, row), is_rows, first, low[i], high[i]);
        }
        mask_scores<RoundedScores>(s_[m], low, high, pair_);
      }
      const float scale[2] = {shared.query_scale[row_ + 16 * m], shared.query_scale[row_ + 16 * m + 8]};
      weigh<Weight, RoundedScores>(s_[m], p_[m], scale, note.key_scale, note.value_scale, rows_[m],
                                   factor_[m], sums_[m]);
    }
  }

  // Adds the products of weights and values of the step in this slot to the sums.
  __device__ __forceinline__ void add_values(std::uint32_t slot) {
    const std::uint32_t values = slot + values_;
#pragma unroll
    for (int c = 0; c < kD / 16; ++c) {
      std::uint32_t o[kTiles][2][4];
#pragma unroll
      for (int k = 0; k < kStepTokens / 32; ++k) {
        std::uint32_t b[4];
        load_matrices(b, (values ^ k * 32) + c * 16 * kStepTokens);
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          const auto& a = reinterpret_cast<const std::uint32_t(&)[4]>(p_[m][4 * k]);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            if (k == 0)
              multiply_u8(o[m][half], a, b[2 * half], b[2 * half + 1]);
            else
              add_u8(o[m][half], a, b[2 * half], b[2 * half + 1]);
          }
        }
      }
#pragma unroll
      for (int m = 0; m < kTiles; ++m)
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          float& sum = sums_[m][8 * c + i];
          sum = fmaf(__uint_as_float(o[m][i / 4][i % 4]), factor_[m][i / 2 % 2], sum);
        }
    }
  }

  // Stores the rows that no other CTA stores.
  __device__ __forceinline__ void store(const PromptArgs& args, const PromptItem& item, int head, int warp,
                                        int lane, int& claim) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      if (!stores_tile<Shape>(args, item, head, warp, m, lane, claim, rows_[m], sums_[m])) continue;
      if (args.q_type == NumberType::f16) {
        store_tile<true>(args, item, head, m);
      } else {
        store_tile<false>(args, item, head, m);
      }
    }
  }

 private:
  template <bool IsHalf>
  __device__ __forceinline__ void store_tile(const PromptArgs& args, const PromptItem& item, int head,
                                             int m) const {
    const int row = row_ + 16 * m;
    float shift[2] = {};
    if (args.lse != nullptr) {
#pragma unroll
      for (int i = 0; i < 2; ++i) shift[i] = find_shift<IsHalf>(args, item, head, row + 8 * i);
    }
    store_integer_rows<kD, IsHalf, /*MayTurn=*/true>(args, item, head, row, pair_, rows_[m], sums_[m],
                                                     channels_of<kD>(args, item, head) + kD,
                                                     [&](int i) { return shift[i]; });
  }
  // Returns the number that the keys' centre adds to the scores of a row, in units of log 2. The four lanes
  // that share the row must call this function together.
  template <bool IsHalf>
  __device__ __forceinline__ float find_shift(const PromptArgs& args, const PromptItem& item, int head,
                                              int row) const {
    float x[kD / 4] = {};
    if (row < item.n_rows) {
      const auto* query = static_cast<const unsigned short*>(args.q.data) +
                          (item.first_row + row) * args.q.token_stride + head * args.q.head_stride +
                          pair_ * 8;
#pragma unroll
      for (int i = 0; i < kD / 4; i += 8)
        unpack_octet<IsHalf>(*reinterpret_cast<const uint4*>(query + 4 * i),
                             reinterpret_cast<float(&)[8]>(x[i]));
    }
    if (args.q_hadamard != 0) rotate_channels<4>(static_cast<int>(threadIdx.x) % kLanes, x);
    const float* centres = channels_of<kD>(args, item, head) + pair_ * 8;
    float shift = 0;
#pragma unroll
    for (int i = 0; i < kD / 4; ++i) shift = fmaf(x[i], centres[i / 8 * 32 + i % 8], shift);
    shift += __shfl_xor_sync(~0U, shift, 1);
    shift += __shfl_xor_sync(~0U, shift, 2);
    return shift * args.scale_log2;
  }

  int row_, pair_;
  std::uint32_t queries_, keys_, values_;
  RowSums rows_[kTiles];
  std::uint32_t s_[kTiles][kStepTokens / 2], p_[kTiles][kStepTokens / 8];
  float factor_[kTiles][2];
  float sums_[kTiles][kD / 2] = {};
};

// Quantizes the queries of a warp's own rows to INT8.
template <class Shape>
__device__ __forceinline__ void quantize_warp_queries(const PromptArgs& args, const PromptItem& item,
                                                      int head, int warp, int lane, unsigned char* queries,
                                                      float* scales) {
  constexpr int kOctets = Shape::kHeadDim / 8;  // groups of eight channels; a lane has one
  const int octet = lane % kOctets;
#pragma unroll 4
  for (int row = lane / kOctets; row < Shape::kWarpRows; row += 32 / kOctets) {
    const int in_block = warp * Shape::kWarpRows + row;
    uint4 eight = make_uint4(0, 0, 0, 0);
    if (in_block < item.n_rows)
      eight = *reinterpret_cast<const uint4*>(static_cast<const unsigned short*>(args.q.data) +
                                              (item.first_row + in_block) * args.q.token_stride +
                                              head * args.q.head_stride + octet * 8);
    float largest[1];
    const auto quantize = [&]<bool IsHalf>(std::bool_constant<IsHalf>) {
      quantize_queries<Shape::kHeadDim, kOctets, IsHalf, /*MayTurn=*/true, 1>(
          args, lane, [&](int) { return eight; }, largest,
          [&](int, const uint2& bytes) {
            constexpr auto place = StepTile<Shape::kHeadDim>::template panel_place<Shape::kWarpRows>;
            *reinterpret_cast<uint2*>(queries + place(row, octet * 8)) = bytes;
          });
    };
    if (args.q_type == NumberType::f16)
      quantize(std::true_type{});
    else
      quantize(std::false_type{});
    if (octet == 0) scales[in_block] = largest[0] * (1.0F / kByteMax) * args.scale_log2;
  }
  __syncwarp();
}

// Computes the attention of a block's rows. `ring` is the shared-memory address of the ring's slots. All
// threads of the CTA must call this function, because it contains barriers.
template <class Shape, class Weight>
__device__ __forceinline__ void attend_integer_block(const PromptArgs& args, IntegerMmaShared<Shape>& shared,
                                                     unsigned char* queries, std::uint32_t ring, int n_slots,
                                                     int warp, int lane) {
  const PromptItem& item = shared.item;
  IntegerSteps<Shape> steps(args, shared, ring, n_slots);
  for (int i = 0; i < n_slots - 1; ++i) steps.begin();
  quantize_warp_queries<Shape>(args, item, shared.head, warp, lane, queries, shared.query_scale);
  WarpSight& sight = shared.sight[warp];
  if (lane == 0) sight = find_sight(args, item, warp * Shape::kWarpRows, (warp + 1) * Shape::kWarpRows - 1);
  __syncwarp();
  IntegerMmaRows<Shape, Weight> rows(shared_address(queries), warp, lane);
  int slot = 0;
#pragma unroll 1
  for (int step = 0; step < shared.n_steps; ++step) {
    const auto [is_rows, first] = place_of_step(item, step);
    const SeenByAll any = sight.any[is_rows ? 1 : 0];
    // After the barrier, the oldest copies have arrived for all threads, and the slot of the previous step is
    // free.
    wait_for_oldest(n_slots);
    __syncthreads();
    steps.begin();
    if (first < any.end && first + kStepTokens > any.first) {
      const std::uint32_t place = ring + slot * Shape::kSlotBytes;
      rows.score(place);
      rows.weigh_step(args, shared, sight, is_rows, first, shared.notes[slot]);
      rows.add_values(place);
    }
    if (++slot == n_slots) slot = 0;
  }
  rows.store(args, item, shared.head, warp, lane, shared.claims[warp]);
}

// Computes the attention of blocks until no work is left. Dynamic shared memory holds each warp's queries,
// then the ring.
template <class Shape, class Weight>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kMostCtas)
    integer_mma_kernel(const __grid_constant__ PromptArgs args, int n_slots) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ IntegerMmaShared<Shape> shared;
  take_blocks(args, shared, [&](int warp, int lane) {
    attend_integer_block<Shape, Weight>(args, shared, memory + warp * Shape::kWarpQueryBytes,
                                        shared_address(memory) + Shape::kQueryBytes, n_slots, warp, lane);
  });
}

}  // namespace kvant::cuda
