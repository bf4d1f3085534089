// Decodes pages for 17 to 32 columns on Hopper. The four warps that share a page's decoding
// (shared_decoding.cuh) form a warpgroup. Products of a warpgroup read queries and weights from shared
// memory, once for all four warps. Each warp decodes some tokens of the keys and some channels of the values,
// as in shared_decoding.cuh. A warpgroup works a page ahead. With a page's weights, the warps also compute
// the scaled queries for the next page. The products of the page's values then run with the products of the
// next page's keys.
#pragma once

#include "device/cuda/common/wgmma.cuh"
#include "device/cuda/common/wgmma_columns.cuh"
#include "device/cuda/decode/shared_decoding.cuh"

namespace kvant::cuda {

// Columns form this many sets of eight, and as many warps share a page.
inline constexpr int kColumnSets = 4;

// Holds a lane's sums of products of some tiles of rows with all columns.
template <int Tiles>
using ColumnTiles = float[Tiles][kColumnSets][4];

// Describes a B operand in shared memory. Contraction tiles of 16 rows and 32 columns lie as [tile][row /
// 8][set][8 columns][8 rows].
struct ColumnOperand {
  static constexpr int kMatrixBytes = 128;
  static constexpr int kHalfBytes = kColumnSets * kMatrixBytes;
  static constexpr int kTileBytes = 2 * kHalfBytes;
  std::uint64_t first;

  // The address must be the same in all lanes, and the compiler must be able to prove that.
  __device__ __forceinline__ explicit ColumnOperand(std::uint32_t address)
      : first(matrix_at(address, kHalfBytes)) {}
  __device__ __forceinline__ std::uint64_t operator[](int tile) const {
    return first + tile * (kTileBytes >> 4);
  }
  // Returns a tile whose rows 8 to 15 repeat rows 0 to 7.
  static __device__ __forceinline__ std::uint64_t of_eight(std::uint32_t address) {
    return matrix_at(address, 0);
  }

 private:
  static __device__ __forceinline__ std::uint64_t matrix_at(std::uint32_t address, int to_next_rows) {
    return std::uint64_t{address >> 4} | static_cast<std::uint64_t>(to_next_rows >> 4) << 16 |
           static_cast<std::uint64_t>(kMatrixBytes >> 4) << 32;
  }
};

// Turns a pair's Groups into the form of a pair that decode_kernel.cuh expects. Groups supplies tables as a
// pair does. The pair's formats must have scales that multiply the queries of a page. Key::prepare makes each
// warp's part of the scaled queries. Key::load and Value::load load codes, whose multiply() adds their
// products. Value also supplies Tokens and finish like Strips::Value (shared_decoding.cuh).
template <class Groups, int D>
struct WarpgroupDecoding : Groups {
  using Key = typename Groups::Key;
  using Value = typename Groups::Value;
  static constexpr bool kForHopper = true;
  static constexpr bool kLooksAhead = true;
  static constexpr int kRegisters = 224, kRegistersOfCopier = 56;
  static constexpr int kTiles = kTokenTiles / kColumnSets;  // tiles of tokens of a warp
  static constexpr int kMTiles = D / 16 / kColumnSets;      // tiles of channels of a warp
  // The products of either side take this many steps.
  static constexpr int kSteps = kTokenTiles;
  static_assert(kSteps == D / 16);
  using Queries = SharedQueries<D, kColumnSets, Key::kOrder>;
  using Tokens = typename Value::template Tokens<kTiles>;

  static constexpr int kMaxWarps = max_consumer_warps(D) / kColumnSets * kColumnSets;
  // The queries of all columns follow the tables. The memory of each group of sharing warps comes next. This
  // memory has space for two pages and for the numbers that warps publish about columns, [2][warp][column]. A
  // page's memory holds the page's scaled queries, eight rows of what zeros add to scores, and weights.
  static constexpr int kQueriesAt = (Groups::kTableBytes + 127) / 128 * 128;
  static constexpr int kGroupsAt = kQueriesAt + (Queries::kBytes + 127) / 128 * 128;
  static constexpr int kScaledAt = 0;
  static constexpr int kOffsetsAt = D / 16 * ColumnOperand::kTileBytes;
  static constexpr int kWeightsAt = kOffsetsAt + ColumnOperand::kHalfBytes;
  static constexpr int kPageBytes = kWeightsAt + kTokenTiles * ColumnOperand::kTileBytes;
  static constexpr int kToldAt = 2 * kPageBytes;
  static constexpr int kTold = kColumnSets * kColumnSets * kPaddedGroup;  // published numbers
  static constexpr int kGroupBytes = (kToldAt + 2 * kTold * 4 + 127) / 128 * 128;
  static constexpr int kWarpBytes = kGroupBytes / kColumnSets;
  static constexpr int kTableBytes = kGroupsAt + kMaxWarps * kWarpBytes;
  // Sums of all channels and columns reuse the memory of both pages.
  static_assert(kColumnSets * D / 16 * kLanes * 16 <= kToldAt);

  struct State {
    ColumnTiles<kMTiles> out = {};
    // A weight of column 2t or 2t + 1 is relative to this score.
    float max[kColumnSets][2];
    // Elements 0 and 1 are sums of the weights of this lane's tokens. Elements 2 and 3 are sums of weights
    // times the tokens' addends.
    float sums[kColumnSets][4] = {};
    const DecodeArgs& args;
    unsigned char* shared = nullptr;
    // The number is the same for all lanes, and the shuffle lets the compiler know that.
    const int group = __shfl_sync(~0U, static_cast<int>(threadIdx.x) / kLanes / kColumnSets, 0);

    template <class Part>
    __device__ State(const DecodeArgs& of_launch, const Part&, int) : args(of_launch) {
#pragma unroll
      for (auto& of_set : max) of_set[0] = of_set[1] = kNoScore;
    }
    // Stores the queries for all warps. Only the warps that share the first ring store queries, because all
    // warps of the CTA have the same queries.
    __device__ __forceinline__ void begin(unsigned char* of_cta, const Query<D>& query, int lane) {
      shared = of_cta;
      if (threadIdx.x < kColumnSets * kLanes) queries().store(Key::arrange(query), sharer(), lane);
      named_barrier(1, args.consumer_warps * kLanes);
    }
    // Returns the query of the warp's own columns. Shared memory keeps the query, because loops over sealed
    // pages have no registers for the query.
    __device__ __forceinline__ Query<D> own_query(int lane) const {
      return Key::rearrange(queries().load(sharer(), lane));
    }
    static __device__ __forceinline__ int sharer() {
      return static_cast<int>(threadIdx.x) / kLanes % kColumnSets;
    }
    __device__ __forceinline__ int barrier() const {
      return kFirstRingBarrier + group;
    }
    // Returns an address in the group's part of shared memory, which is the same for all lanes.
    __device__ __forceinline__ std::uint32_t address(int at) const {
      return shared_address(shared) + kGroupsAt + at + group * kGroupBytes;
    }
    __device__ __forceinline__ Queries queries() const {
      return {shared + kQueriesAt};
    }
    __device__ __forceinline__ unsigned char* of_group() const {
      return shared + kGroupsAt + group * kGroupBytes;
    }
    // Returns the numbers that a warp publishes about columns. `which` selects one of two numbers a column.
    __device__ __forceinline__ float* told(int which, int warp) const {
      return reinterpret_cast<float*>(of_group() + kToldAt) + which * kTold +
             warp * (kColumnSets * kPaddedGroup);
    }
  };

  // Holds the factors that make scores of products with keys, except for Key::unit.
  struct Factors {
    float of[kColumnSets][2];
    __device__ __forceinline__ Factors(const State& state, int lane) {
#pragma unroll
      for (int set = 0; set < kColumnSets; ++set) {
        const float2 two = state.queries().factors(set, lane);
        of[set][0] = two.x;
        of[set][1] = two.y;
      }
    }
  };

  // Attends to the pages whose numbers within the CTA's range are above `last` and below `end`. Returns the
  // number of the last page.
  template <class Part>
  static __device__ __forceinline__ int attend_to_pages(const DecodeArgs& args, unsigned char* tables,
                                                        const Part& segment, int last, int end, int lane,
                                                        RingReader& ring, State& state) {
    int number = ring.next_unit(last);
    // The vote tells the compiler that all lanes branch alike, as in consume().
    if (__any_sync(~0U, number < end) == 0) return last;
    const int first_tile = part_of_lane(lane) * kTiles;
    int page_at = 0;  // offset in bytes of the current page's memory in the group's memory
    const unsigned char* keys = ring.wait();
    const typename Key::Part own(state.queries(), State::sharer(), lane);
    const Factors factors(state, lane);
    prepare(keys, own, page_at, lane, state);
    // No page comes before the first page, so the first products of values are with zeros.
    typename Value::Codes value_codes;
    value_codes.clear();
    clear_weights(page_at ^ kPageBytes, lane, state);
    float unit = 1;
    publish_to_wgmma();
    named_barrier(state.barrier(), kColumnSets * kLanes);
    bool more;
    do {
      const auto key_codes = Key::load(keys, first_tile, lane);
      const bool is_masked = may_be_masked(args, segment, segment.unit_of(number));
      if (unit != 1) multiply_all(state.out, 1 / kLargestSharedWeight);
      const ColumnOperand scaled(state.address(page_at + kScaledAt));
      const ColumnOperand weights(state.address((page_at ^ kPageBytes) + kWeightsAt));
      ColumnTiles<kTiles> s;
      multiply<0, kSteps / 2>(value_codes, weights, state.out, key_codes, scaled, s);
      ring.release();
      const unsigned char* values = ring.wait();
      const int values_stage = ring.stage;
      ring.keep();
      int next = ring.noted_unit();
      const bool is_there = ring.is_full();
      multiply<kSteps / 2, kSteps>(value_codes, weights, state.out, key_codes, scaled, s);
      Key::add_offsets(ColumnOperand::of_eight(state.address(page_at + kOffsetsAt)), s);
      hold_values(state);
      if (unit != 1) multiply_all(state.out, unit);
      if (is_masked) mask(args, segment, segment.unit_of(number), first_tile, lane, s);
      if (next <= number) next = ring.next_unit(number);
      more = __any_sync(~0U, next < end) != 0;
      if (more && !is_there) ring.wait();
      // If no page follows, prepare() uses whatever the slot contains. Without a branch, the compiler
      // interleaves prepare() with the code for weights.
      keys = ring.slot();
      prepare(keys, own, page_at ^ kPageBytes, lane, state);
      const Tokens tokens(args, tables, values, first_tile, lane);
      const bool rises = weigh(s, factors, tokens, page_at, lane, state);
      publish_to_wgmma();
      value_codes = Value::load(values, part_of_lane(lane) * kMTiles, lane);
      unit = tokens.unit;
      if (named_barrier_any(state.barrier(), kColumnSets * kLanes, rises)) {
        raise(s, factors, lane, state);
        weigh_again(s, factors, tokens, rises, page_at, lane, state);
        publish_to_wgmma();
        named_barrier(state.barrier(), kColumnSets * kLanes);
      }
      ring.release_kept(values_stage);
      last = number;
      number = next;
      page_at ^= kPageBytes;
    } while (more);
    add_last_values(value_codes, unit, page_at ^ kPageBytes, state);
    return last;
  }

  // Moves the sums of the warp's own columns over all channels into the accumulator.
  static __device__ __forceinline__ void finish(State& state, int lane, Accumulator<D>& acc) {
    const int own = State::sharer();
    auto* sums = reinterpret_cast<float4*>(state.of_group()) + lane;
    // All warps must have read the last weights, whose memory is reused.
    named_barrier(state.barrier(), kColumnSets * kLanes);
#pragma unroll
    for (int set = 0; set < kColumnSets; ++set) {
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) {
        const float(&x)[4] = state.out[m][set];
        sums[(set * (D / 16) + part_of_lane(lane) * kMTiles + m) * kLanes] =
            make_float4(x[0], x[1], x[2], x[3]);
      }
      float of_lanes[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) of_lanes[i] = sum_over_tiles(state.sums[set][i]);
      if (lane < 4) {
        const int column = set * kPaddedGroup + 2 * lane;
        *reinterpret_cast<float2*>(state.told(0, own) + column) = make_float2(of_lanes[0], of_lanes[1]);
        *reinterpret_cast<float2*>(state.told(1, own) + column) = make_float2(of_lanes[2], of_lanes[3]);
      }
      if (set == own) {
        acc.max[0] = state.max[set][0];
        acc.max[1] = state.max[set][1];
      }
    }
    named_barrier(state.barrier(), kColumnSets * kLanes);
    float addend[2] = {0, 0};  // sums over all tokens, which every lane has
    take_own_columns<D, kColumnSets>(state, sums, own, lane, acc, addend);
    Value::finish(state.args, acc.out, addend);
  }

 private:
  // Returns the part of a page's tiles that a lane handles, as SharedDecoding::part_of_lane() does.
  static __device__ __forceinline__ int part_of_lane(int lane) {
    return State::sharer() ^ lane / 8;
  }

  static __device__ __forceinline__ void prepare(const unsigned char* keys, const typename Key::Part& own,
                                                 int page_at, int lane, const State& state) {
    unsigned char* const page = state.of_group() + page_at;
    Key::prepare(keys, State::sharer(), own, page + kScaledAt, page + kOffsetsAt, lane);
  }
  static __device__ __forceinline__ void clear_weights(int page_at, int lane, const State& state) {
    auto* const weights = reinterpret_cast<uint4*>(state.of_group() + page_at + kWeightsAt) + lane;
    constexpr int kPieces = kTokenTiles * ColumnOperand::kTileBytes / 16 / (kColumnSets * kLanes);
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
      weights[(State::sharer() * kPieces + i) * kLanes] = make_uint4(0, 0, 0, 0);
  }
  // Interleaves steps of two products. One product is a page's values with weights, and the other is the next
  // page's keys with queries. A step then need not wait for the previous step.
  template <int First, int Last>
  static __device__ __forceinline__ void multiply(const typename Value::Codes& values,
                                                  const ColumnOperand& weights, ColumnTiles<kMTiles>& out,
                                                  const typename Key::Codes& keys,
                                                  const ColumnOperand& scaled, ColumnTiles<kTiles>& s) {
#pragma unroll
    for (int k = First; k < Last; ++k) {
      values.template multiply<true>(k, out, weights);
      if (k == 0)
        keys.template multiply<false>(k, s, scaled);
      else
        keys.template multiply<true>(k, s, scaled);
    }
  }
  static __device__ __forceinline__ void add_last_values(const typename Value::Codes& codes, float unit,
                                                         int page_at, State& state) {
    if (unit != 1) multiply_all(state.out, 1 / kLargestSharedWeight);
    const ColumnOperand weights(state.address(page_at + kWeightsAt));
#pragma unroll
    for (int k = 0; k < kSteps; ++k) codes.template multiply<true>(k, state.out, weights);
    await_columns<0>();
    hold_values(state);
    if (unit != 1) multiply_all(state.out, unit);
  }
  static __device__ __forceinline__ void hold_values(State& state) {
#pragma unroll
    for (auto& tile : state.out) hold_columns(tile);
  }
  static __device__ __forceinline__ void multiply_all(ColumnTiles<kMTiles>& out, float factor) {
#pragma unroll
    for (auto& tile : out) {
#pragma unroll
      for (auto& of_set : tile) {
#pragma unroll
        for (float& x : of_set) x *= factor;
      }
    }
  }
  template <class Part>
  static __device__ __forceinline__ void mask(const DecodeArgs& args, const Part& segment, int page,
                                              int first_tile, int lane, ColumnTiles<kTiles>& s) {
#pragma unroll
    for (int set = 0; set < kColumnSets; ++set) {
      float of_set[kTiles][4];
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) of_set[m][i] = s[m][set][i];
      }
      mask_columns(args, segment, page, first_tile / 2, set * kPaddedGroup - segment.first_column(args), lane,
                   of_set);
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) s[m][set][i] = of_set[m][i];
      }
    }
  }

  // Stores the weights of the warp's tokens and adds them to the lane's sums. If a weight is too large,
  // returns true and adds nothing.
  static __device__ __forceinline__ bool weigh(const ColumnTiles<kTiles>& s, const Factors& factors,
                                               const Tokens& tokens, int page_at, int lane, State& state) {
    std::uint32_t largest = 0;  // two half-precision numbers
    float sums[kColumnSets][4];
    weigh_into(s, factors, tokens, page_at, lane, state, largest, sums);
    const bool rises = are_too_large(largest);
    if (!rises) add_sums(sums, state);
    return rises;
  }
  // Stores the weights again after raise(), when no weight is too large. `counts` says that weigh() has not
  // added the weights to the lane's sums.
  static __device__ __forceinline__ void weigh_again(const ColumnTiles<kTiles>& s, const Factors& factors,
                                                     const Tokens& tokens, bool counts, int page_at, int lane,
                                                     State& state) {
    std::uint32_t largest = 0;
    float sums[kColumnSets][4];
    weigh_into(s, factors, tokens, page_at, lane, state, largest, sums);
    if (counts) add_sums(sums, state);
  }
  static __device__ __forceinline__ void add_sums(const float (&more)[kColumnSets][4], State& state) {
#pragma unroll
    for (int set = 0; set < kColumnSets; ++set) {
#pragma unroll
      for (int i = 0; i < 4; ++i) state.sums[set][i] += more[set][i];
    }
  }
  // Computes and stores the weights of the warp's tokens. Returns the largest weights in `largest`, and sums
  // over this lane's tokens in `sums`.
  static __device__ __forceinline__ void weigh_into(const ColumnTiles<kTiles>& s, const Factors& factors,
                                                    const Tokens& tokens, int page_at, int lane,
                                                    const State& state, std::uint32_t& largest,
                                                    float (&sums)[kColumnSets][4]) {
    const std::uint32_t to = shared_address(state.of_group()) + page_at + kWeightsAt + lane * 16 +
                             State::sharer() * (kTiles * ColumnOperand::kTileBytes);
    std::uint32_t packed[kTiles][2][kColumnSets];
#pragma unroll
    for (int set = 0; set < kColumnSets; ++set) {
      const float base[2] = {state.max[set][0] - kWeightBits, state.max[set][1] - kWeightBits};
      float sum[2] = {0, 0}, addend[2] = {0, 0};
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        float p[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          p[i] =
              exp2_fast(fmaf(s[tile][set][i], factors.of[set][i & 1] * Key::unit(tile, i / 2), -base[i & 1]));
          sum[i & 1] += p[i];
        }
        if constexpr (Value::kHasAddends) {
          const float2 of_rows = tokens.addends(tile);
#pragma unroll
          for (int i = 0; i < 4; ++i)
            addend[i & 1] = fmaf(p[i], i < 2 ? of_rows.x : of_rows.y, addend[i & 1]);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const std::uint32_t two = pack_half2(p[2 * half], p[2 * half + 1]);
          largest = max_u16x2(largest, two);
          packed[tile][half][set] = tokens.multiply(tile, half, two);
        }
      }
      sums[set][0] = sum[0];
      sums[set][1] = sum[1];
      sums[set][2] = addend[0];
      sums[set][3] = addend[1];
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::uint32_t(&x)[kColumnSets] = packed[tile][half];
        store_transposed_matrices(to + tile * ColumnOperand::kTileBytes + half * ColumnOperand::kHalfBytes,
                                  x[0], x[1], x[2], x[3]);
      }
    }
  }

  // Raises the reference of all columns' weights to the largest scores so far. Calls are rare, because only a
  // segment's first page and large rises of scores need one.
  static __device__ __forceinline__ void raise(const ColumnTiles<kTiles>& s, const Factors& factors, int lane,
                                               State& state) {
#pragma unroll
    for (int set = 0; set < kColumnSets; ++set) {
      float top[2] = {kNoScore, kNoScore};
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          top[i & 1] = fmaxf(top[i & 1], s[tile][set][i] * (factors.of[set][i & 1] * Key::unit(tile, i / 2)));
      }
#pragma unroll
      for (int step = 4; step < 32; step *= 2) {
        top[0] = fmaxf(top[0], __shfl_xor_sync(~0U, top[0], step));
        top[1] = fmaxf(top[1], __shfl_xor_sync(~0U, top[1], step));
      }
      if (lane < 4)
        *reinterpret_cast<float2*>(state.told(0, State::sharer()) + set * kPaddedGroup + 2 * lane) =
            make_float2(top[0], top[1]);
    }
    named_barrier(state.barrier(), kColumnSets * kLanes);
#pragma unroll
    for (int set = 0; set < kColumnSets; ++set) {
      float higher[2];
      find_raised<kColumnSets>(state, set, lane, higher);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float factor = exp2_fast(state.max[set][h] - higher[h]);
        state.max[set][h] = higher[h];
        state.sums[set][h] *= factor;
        state.sums[set][h + 2] *= factor;
#pragma unroll
        for (auto& tile : state.out) {
          tile[set][h] *= factor;
          tile[set][h + 2] *= factor;
        }
      }
    }
  }
};

}  // namespace kvant::cuda
