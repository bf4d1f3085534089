// Decodes pages for many columns. `Sets` warps that share a page also share its decoding. Each warp decodes
// its part of the page's codes once and multiplies the decoded part with the columns of all warps. A warp's
// part is some of the tokens for keys, and some of the channels for values. The values' products need the
// weights of all tokens. Once for each page, between the two products, warps therefore write the weights of
// their tokens to shared memory and synchronize.
#pragma once

#include "device/cuda/decode/decode_kernel.cuh"

namespace kvant::cuda {

// All warps scale a column's weights by one reference, which does not follow every larger score. Otherwise
// warps would have to synchronize before they compute weights. The reference stays while no weight exceeds
// 2^(kWeightBits + kSlack). At the barrier the warps tell each other whether a weight exceeds this limit. If
// so, the warps raise the reference and compute the weights again. The limit holds before the factor of a
// token multiplies the token's weight.
inline constexpr float kSlack = 4;
inline constexpr float kLargestSharedWeight = 256;
static_assert(kWeightBits + kSlack == 8);

// QueryOrder is the order of the registers of two sets of columns. `columns` suits the B operands of products
// with either set. `rows` suits the A operand of a product whose rows are the 16 columns.
enum class QueryOrder : std::uint8_t { columns, rows };

// Holds the queries of all columns in shared memory, as MMA operands.
template <int D, int Sets, QueryOrder Order>
struct SharedQueries {
  static constexpr int kPairs = Sets / 2;
  static constexpr int kFactorsAt = D / 16 * kPairs * kLanes * 16;
  static constexpr int kSumsAt = kFactorsAt + Sets * kPaddedGroup * 4;
  static constexpr int kBytes = kSumsAt + Sets * kPaddedGroup * 4;
  unsigned char* at;

  // Both functions return sets 2 * pair and 2 * pair + 1. columns() returns b[k][0] and b[k][1] of the first
  // set and then of the second set. rows() returns b[k][0] of both sets and then b[k][1] of both sets.
  __device__ __forceinline__ uint4 columns(int k, int pair, int lane) const {
    const uint4 x = fragments(k, pair, lane);
    return Order == QueryOrder::columns ? x : make_uint4(x.x, x.z, x.y, x.w);
  }
  __device__ __forceinline__ uint4 rows(int k, int pair, int lane) const {
    const uint4 x = fragments(k, pair, lane);
    return Order == QueryOrder::rows ? x : make_uint4(x.x, x.z, x.y, x.w);
  }
  // Returns Query::factor of columns 2t and 2t + 1 of a set.
  __device__ __forceinline__ float2 factors(int set, int lane) const {
    return reinterpret_cast<const float2*>(at + kFactorsAt)[set * 4 + lane % 4];
  }
  // Returns the sums over channels of a set's columns 2t and 2t + 1, in the order that register `b` has.
  __device__ __forceinline__ float2 sums(int set, int lane) const {
    return reinterpret_cast<const float2*>(at + kSumsAt)[set * 4 + lane % 4];
  }
  __device__ __forceinline__ void store_sum(const Query<D>& query, int set, int lane) const {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 two = unpack_half2(query.b[k][half]);
        sum += two.x + two.y;
      }
    }
    sum += __shfl_xor_sync(~0U, sum, 1);
    sum += __shfl_xor_sync(~0U, sum, 2);
    if (lane % 4 == 0) reinterpret_cast<float*>(at + kSumsAt)[set * kPaddedGroup + lane / 4] = sum;
  }
  __device__ __forceinline__ void store(const Query<D>& query, int set, int lane) const {
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
#pragma unroll
      for (int half = 0; half < 2; ++half) word(k, set, half, lane) = query.b[k][half];
    }
    if (lane < 4)
      reinterpret_cast<float2*>(at + kFactorsAt)[set * 4 + lane] = {query.factor[0], query.factor[1]};
  }
  __device__ __forceinline__ Query<D> load(int set, int lane) const {
    Query<D> query;
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
#pragma unroll
      for (int half = 0; half < 2; ++half) query.b[k][half] = word(k, set, half, lane);
    }
    const float2 factor = factors(set, lane);
    query.factor[0] = factor.x;
    query.factor[1] = factor.y;
    return query;
  }

 private:
  __device__ __forceinline__ uint4 fragments(int k, int pair, int lane) const {
    return reinterpret_cast<const uint4*>(at)[(k * kPairs + pair) * kLanes + lane];
  }
  __device__ __forceinline__ std::uint32_t& word(int k, int set, int half, int lane) const {
    const int of_pair = Order == QueryOrder::rows ? half * 2 + set % 2 : set % 2 * 2 + half;
    return reinterpret_cast<std::uint32_t*>(at)[((k * kPairs + set / 2) * kLanes + lane) * 4 + of_pair];
  }
};

// Holds a page's weights in half precision in shared memory, [token tile][set][row / 8][8 rows][8 columns].
// With Totals, rows with sums of weights follow. Each group of four lanes of a warp has one row, with the
// sums of its tokens.
template <int Sets, bool Totals>
struct SharedWeights {
  static constexpr int kTiles = kTokenTiles + (Totals ? Sets / 2 : 0);
  static constexpr int kBytes = kTiles * Sets * 2 * 128;
  unsigned char* at;

  // Stores columns 2t and 2t + 1 of row `row` + 8 * half of a tile.
  __device__ __forceinline__ void store(int tile, int set, int half, int row, int lane,
                                        std::uint32_t x) const {
    reinterpret_cast<std::uint32_t*>(at)[((tile * Sets + set) * 2 + half) * kLanes + row * 4 + lane % 4] = x;
  }
  // Loads the B operand of contraction tile `tile`. Set 2 * pair goes into b[0] and b[1], and the next set
  // goes into b[2] and b[3].
  __device__ __forceinline__ void load(int tile, int pair, int lane, std::uint32_t (&b)[4]) const {
    load_transposed_matrices(b, shared_address(at) + (tile * Sets + 2 * pair) * 256 + lane * 16);
  }
};

// Names a token's row in the products with values, which is row + 8 * half of a tile.
struct TokenRow {
  int tile, half, row;
};

// Holds a lane's sums of products with the columns of all sets.
template <int Sets, int Tiles>
using SetSums = float[Sets][Tiles][4];

// Returns whether any lane has a weight above kLargestSharedWeight. `largest` holds two half-precision
// numbers.
__device__ __forceinline__ bool are_too_large(std::uint32_t largest) {
  // The limit has the bits of 256 in half precision.
  constexpr std::uint32_t kLimit = 0x5c00;
  return __any_sync(~0U, (largest & 0xffff) > kLimit || largest >> 16 > kLimit) != 0;
}

// Returns in `higher` the new reference of the weights of a set's columns. The new reference is the largest
// of the old reference and the scores that the sharing warps have published.
template <int Sets, class State>
__device__ __forceinline__ void find_raised(const State& state, int set, int lane, float (&higher)[2]) {
  higher[0] = state.max[set][0];
  higher[1] = state.max[set][1];
#pragma unroll
  for (int warp = 0; warp < Sets; ++warp) {
    const float2 top =
        *reinterpret_cast<const float2*>(state.told(0, warp) + set * kPaddedGroup + lane % 4 * 2);
    higher[0] = fmaxf(higher[0], top.x);
    higher[1] = fmaxf(higher[1], top.y);
  }
}

// Returns the sum of x over the lanes that have the columns of this lane.
__device__ __forceinline__ float sum_over_tiles(float x) {
#pragma unroll
  for (int step = 4; step < 32; step *= 2) x += __shfl_xor_sync(~0U, x, step);
  return x;
}

// Gives the warp the results of its own columns. `sums` [set][m tile][lane] holds the sums of all channels
// that the sharing warps have left. The warp's columns go to acc.out. The published sums of weights and
// addends go to acc.sum and `addend`.
template <int D, int Sets, class State>
__device__ __forceinline__ void take_own_columns(const State& state, const float4* sums, int own, int lane,
                                                 Accumulator<D>& acc, float (&addend)[2]) {
#pragma unroll
  for (int m = 0; m < D / 16; ++m) {
    const float4 x = sums[(own * (D / 16) + m) * kLanes];
    acc.out[m][0] = x.x;
    acc.out[m][1] = x.y;
    acc.out[m][2] = x.z;
    acc.out[m][3] = x.w;
  }
#pragma unroll
  for (int warp = 0; warp < Sets; ++warp) {
    const int column = own * kPaddedGroup + lane % 4 * 2;
    const float2 sum = *reinterpret_cast<const float2*>(state.told(0, warp) + column);
    const float2 more = *reinterpret_cast<const float2*>(state.told(1, warp) + column);
    // Only one lane of each column adds the sums, because acc.sum covers a lane's own tokens.
    if (lane < 4) {
      acc.sum[0] += sum.x;
      acc.sum[1] += sum.y;
    }
    addend[0] += more.x;
    addend[1] += more.y;
  }
}

// Turns a pair's Strips into the form of a pair that decode_kernel.cuh expects. Sets is the number of warps
// that share a page.
//
// Strips supplies tables as a pair does, and Key::score. Strips::Value supplies Tokens (the factors of a
// warp's tokens, which multiply the tokens' weights), mix and finish. After the last sealed page each warp
// has the sums of its channels for all columns. The warps exchange sums, after which each warp has all
// channels of its own columns. The warps then continue as in decode_kernel.cuh.
template <class Strips, int D, int Sets>
struct SharedDecoding : Strips {
  using Key = typename Strips::Key;
  using Value = typename Strips::Value;
  static constexpr int kTiles = kTokenTiles / Sets;  // tiles of tokens of a warp
  static constexpr int kMTiles = D / 16 / Sets;      // tiles of channels of a warp
  using Queries = SharedQueries<D, Sets, Key::kOrder>;
  using Weights = SharedWeights<Sets, Value::kHasTotals>;
  using Tokens = typename Value::template Tokens<kTiles>;

  static constexpr int kMaxWarps = max_consumer_warps(D) / Sets * Sets;
  // The queries of all columns follow the tables. The memory of each group of sharing warps comes next. That
  // memory has three parts: the weights of two pages, the numbers that warps publish about columns, and the
  // lanes' sums. Published numbers have the shape [2][warp][column], and sums [warp][set][lane].
  static constexpr int kQueriesAt = (Strips::kTableBytes + 127) / 128 * 128;
  static constexpr int kGroupsAt = kQueriesAt + (Queries::kBytes + 127) / 128 * 128;
  static constexpr int kTold = Sets * Sets * kPaddedGroup;  // published numbers
  static constexpr int kSumsAt = 2 * Weights::kBytes + 2 * kTold * 4;
  static constexpr int kGroupBytes = kSumsAt + Sets * Sets * kLanes * 16;
  static constexpr int kWarpBytes = kGroupBytes / Sets;
  static constexpr int kTableBytes = kGroupsAt + kMaxWarps * kWarpBytes;
  // Sums of all channels and columns reuse the memory of the weights.
  static_assert(Sets * D / 16 * kLanes * 16 <= 2 * Weights::kBytes);

  struct State {
    SetSums<Sets, kMTiles> out = {};
    // A weight of column 2t or 2t + 1 is relative to this score.
    float max[Sets][2];
    const DecodeArgs& args;
    unsigned char* shared = nullptr;
    // The two buffers of weights alternate, and this is the index of the current buffer.
    int buffer = 0;

    template <class Part>
    __device__ State(const DecodeArgs& of_launch, const Part&, int) : args(of_launch) {
#pragma unroll
      for (auto& of_set : max) of_set[0] = of_set[1] = kNoScore;
    }
    // Stores the queries for all warps. Only the warps that share the first ring store queries, because all
    // warps of the CTA have the same queries.
    __device__ __forceinline__ void begin(unsigned char* of_cta, const Query<D>& query, int lane) {
      shared = of_cta;
      if (threadIdx.x < Sets * kLanes) {
        queries().store(Key::arrange(query), sharer(), lane);
        if constexpr (Key::kNeedsSums) queries().store_sum(query, sharer(), lane);
      }
#pragma unroll
      for (int set = 0; set < Sets; ++set) sums(set, lane) = make_float4(0, 0, 0, 0);
      named_barrier(1, args.consumer_warps * kLanes);
    }
    // Returns the query of the warp's own columns. Shared memory keeps the query, because loops over sealed
    // pages have no registers for the query.
    __device__ __forceinline__ Query<D> own_query(int lane) const {
      return Key::rearrange(queries().load(sharer(), lane));
    }

    static __device__ __forceinline__ int sharer() {
      return static_cast<int>(threadIdx.x) / kLanes % Sets;
    }
    static __device__ __forceinline__ int group() {
      return static_cast<int>(threadIdx.x) / kLanes / Sets;
    }
    static __device__ __forceinline__ int barrier() {
      return kFirstRingBarrier + group();
    }
    __device__ __forceinline__ Queries queries() const {
      return {shared + kQueriesAt};
    }
    __device__ __forceinline__ unsigned char* of_group() const {
      return shared + kGroupsAt + group() * kGroupBytes;
    }
    __device__ __forceinline__ Weights weights() const {
      return {of_group() + buffer * Weights::kBytes};
    }
    // Returns sums over this lane's tokens for columns 2t and 2t + 1 of a set. x and y are sums of weights. z
    // and w are sums of weights times the tokens' addends. The sums lie in shared memory, because registers
    // are scarce.
    __device__ __forceinline__ float4& sums(int set, int lane) const {
      return reinterpret_cast<float4*>(of_group() + kSumsAt)[(sharer() * Sets + set) * kLanes + lane];
    }
    // Returns the numbers that a warp publishes about columns. `which` selects one of two numbers a column.
    __device__ __forceinline__ float* told(int which, int warp) const {
      return reinterpret_cast<float*>(of_group() + 2 * Weights::kBytes) + which * kTold +
             warp * (Sets * kPaddedGroup);
    }
  };

  template <class Part>
  static __device__ __forceinline__ void attend(const DecodeArgs& args, unsigned char* tables,
                                                const Part& segment, int page, const Query<D>&, int lane,
                                                RingReader& ring, State& state) {
    const int first_tile = part_of_lane(lane) * kTiles;
    SetSums<Sets, kTiles> s;
    Key::score(args, tables, ring.wait(), first_tile, state.queries(), lane, s);
    ring.release();
    if (may_be_masked(args, segment, page)) {
#pragma unroll
      for (int set = 0; set < Sets; ++set)
        mask_columns(args, segment, page, first_tile / 2, set * kPaddedGroup - segment.first_column(args),
                     lane, s[set]);
    }
    const unsigned char* values = ring.wait();
    Tokens tokens(args, tables, values, first_tile, lane);
    const bool rises = weigh(s, tokens, first_tile, lane, state);
    if (named_barrier_any(State::barrier(), Sets * kLanes, rises)) {
      raise(s, lane, state);
      weigh_again(s, tokens, rises, first_tile, lane, state);
      named_barrier(State::barrier(), Sets * kLanes);
    }
    if (tokens.unit != 1) multiply_all(state.out, tokens.inverse_unit());
    Value::mix(args, tables, values, part_of_lane(lane) * kMTiles, state.weights(), lane, state.out);
    if (tokens.unit != 1) multiply_all(state.out, tokens.unit);
    ring.release();
    state.buffer ^= 1;
  }

  // Moves the sums of the warp's own columns over all channels into the accumulator.
  static __device__ __forceinline__ void finish(State& state, int lane, Accumulator<D>& acc) {
    const int own = State::sharer();
    auto* sums = reinterpret_cast<float4*>(state.of_group()) + lane;
    // All warps must have read the last weights, whose memory is reused.
    named_barrier(State::barrier(), Sets * kLanes);
#pragma unroll
    for (int set = 0; set < Sets; ++set) {
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) {
        const float(&x)[4] = state.out[set][m];
        sums[(set * (D / 16) + part_of_lane(lane) * kMTiles + m) * kLanes] =
            make_float4(x[0], x[1], x[2], x[3]);
      }
      float4 of_lanes = state.sums(set, lane);
      of_lanes.x = sum_over_tiles(of_lanes.x);
      of_lanes.y = sum_over_tiles(of_lanes.y);
      of_lanes.z = sum_over_tiles(of_lanes.z);
      of_lanes.w = sum_over_tiles(of_lanes.w);
      if (lane < 4) {
        const int column = set * kPaddedGroup + 2 * lane;
        *reinterpret_cast<float2*>(state.told(0, own) + column) = make_float2(of_lanes.x, of_lanes.y);
        *reinterpret_cast<float2*>(state.told(1, own) + column) = make_float2(of_lanes.z, of_lanes.w);
      }
      if (set == own) {
        acc.max[0] = state.max[set][0];
        acc.max[1] = state.max[set][1];
      }
    }
    named_barrier(State::barrier(), Sets * kLanes);
    float addend[2] = {0, 0};  // sums over all tokens, which every lane has
    take_own_columns<D, Sets>(state, sums, own, lane, acc, addend);
    Value::finish(state.args, acc.out, addend);
  }

 private:
  // Returns the part of a page's tiles that a lane handles. Each of four warps reads one or two words of
  // every 16-byte piece, which hold lanes' streams of codes. If all lanes of a warp had one part, the words
  // that the warp reads would fill only a quarter or half of the banks. Lanes that are eight apart therefore
  // have different parts, which the bits of Strips::kMixedParts select. Rows of an MMA operand then belong to
  // different tiles, which does not affect the products.
  static __device__ __forceinline__ int part_of_lane(int lane) {
    return State::sharer() ^ (lane / 8 & (Sets == 4 ? Strips::kMixedParts : 0));
  }
  static __device__ __forceinline__ void multiply_all(SetSums<Sets, kMTiles>& out, float factor) {
#pragma unroll
    for (auto& of_set : out) {
#pragma unroll
      for (auto& tile : of_set) {
#pragma unroll
        for (float& x : tile) x *= factor;
      }
    }
  }
  // Returns the largest of this lane's scores of a column.
  static __device__ __forceinline__ float largest(const SetSums<Sets, kTiles>& s, int set, int h) {
    float top = s[set][0][h];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) top = fmaxf(top, fmaxf(s[set][tile][h], s[set][tile][h + 2]));
    return top;
  }

  // Stores the weights of the warp's tokens and adds them to the lane's sums. If a weight is too large,
  // returns true and adds nothing.
  static __device__ __forceinline__ bool weigh(const SetSums<Sets, kTiles>& s, const Tokens& tokens,
                                               int first_tile, int lane, State& state) {
    std::uint32_t largest = 0;  // two half-precision numbers
    float4 sums[Sets];
    weigh_into(s, tokens, first_tile, lane, state, largest, sums);
    const bool rises = are_too_large(largest);
    if (!rises) add_sums(sums, lane, state);
    return rises;
  }
  // Stores the weights again after raise(), when no weight is too large. `counts` says that weigh() has not
  // added the weights to the lane's sums.
  static __device__ __forceinline__ void weigh_again(const SetSums<Sets, kTiles>& s, const Tokens& tokens,
                                                     bool counts, int first_tile, int lane, State& state) {
    std::uint32_t largest = 0;
    float4 sums[Sets];
    weigh_into(s, tokens, first_tile, lane, state, largest, sums);
    if (counts) add_sums(sums, lane, state);
  }
  static __device__ __forceinline__ void add_sums(const float4 (&more)[Sets], int lane, State& state) {
#pragma unroll
    for (int set = 0; set < Sets; ++set) {
      float4& sums = state.sums(set, lane);
      const float4 x = sums;
      sums = make_float4(x.x + more[set].x, x.y + more[set].y, x.z + more[set].z, x.w + more[set].w);
    }
  }
  // Computes and stores the weights of the warp's tokens. Returns the largest weights in `largest`, and sums
  // over this lane's tokens in `sums`.
  static __device__ __forceinline__ void weigh_into(const SetSums<Sets, kTiles>& s, const Tokens& tokens,
                                                    int first_tile, int lane, const State& state,
                                                    std::uint32_t& largest, float4 (&sums)[Sets]) {
    const Weights weights = state.weights();
#pragma unroll
    for (int set = 0; set < Sets; ++set) {
      const float base[2] = {state.max[set][0] - kWeightBits, state.max[set][1] - kWeightBits};
      float sum[2] = {0, 0}, addend[2] = {0, 0};
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        float p[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          p[i] = exp2_fast(s[set][tile][i] - base[i & 1]);
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
          const std::uint32_t packed = pack_half2(p[2 * half], p[2 * half + 1]);
          largest = max_u16x2(largest, packed);
          const TokenRow to = Value::row_of(first_tile, tile, half, lane);
          weights.store(to.tile, set, to.half, to.row, lane, tokens.multiply(tile, half, packed));
        }
      }
      if constexpr (Value::kHasTotals)
        weights.store(kTokenTiles + State::sharer() / 2, set, State::sharer() % 2, lane / 4, lane,
                      tokens.of_total(sum[0], sum[1]));
      sums[set] = make_float4(sum[0], sum[1], addend[0], addend[1]);
    }
  }

  // Raises the reference of all columns' weights to the largest scores so far. Calls are rare, because only a
  // segment's first page and large rises of scores need one.
  static __device__ __forceinline__ void raise(const SetSums<Sets, kTiles>& s, int lane, State& state) {
#pragma unroll
    for (int set = 0; set < Sets; ++set) {
      float2 top = make_float2(largest(s, set, 0), largest(s, set, 1));
#pragma unroll
      for (int step = 4; step < 32; step *= 2) {
        top.x = fmaxf(top.x, __shfl_xor_sync(~0U, top.x, step));
        top.y = fmaxf(top.y, __shfl_xor_sync(~0U, top.y, step));
      }
      if (lane < 4)
        *reinterpret_cast<float2*>(state.told(0, State::sharer()) + set * kPaddedGroup + 2 * lane) = top;
    }
    named_barrier(State::barrier(), Sets * kLanes);
#pragma unroll
    for (int set = 0; set < Sets; ++set) {
      float higher[2];
      find_raised<Sets>(state, set, lane, higher);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float factor = exp2_fast(state.max[set][h] - higher[h]);
        state.max[set][h] = higher[h];
        float4& sums = state.sums(set, lane);
        (h == 0 ? sums.x : sums.y) *= factor;
        (h == 0 ? sums.z : sums.w) *= factor;
#pragma unroll
        for (auto& tile : state.out[set]) {
          tile[h] *= factor;
          tile[h + 2] *= factor;
        }
      }
    }
  }
};

}  // namespace kvant::cuda
