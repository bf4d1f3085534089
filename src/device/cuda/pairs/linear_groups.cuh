// Attends to keys ch<B>g128 and values tok<B>g128 by warpgroups that share the decoding of pages
// (warpgroup_decoding.cuh). A page is decoded once for up to 32 columns of queries.
#pragma once

#include "device/cuda/decode/warpgroup_decoding.cuh"
#include "device/cuda/pairs/linear_strips.cuh"

namespace kvant::cuda {

// Holds a lane's codes of two neighbouring row tiles and one contraction tile.
template <int Bits>
struct TileCodes {
  std::uint32_t words[Bits / 2];

  __device__ __forceinline__ void load(const unsigned char* at) {
    if constexpr (Bits == 4) {
      const uint2 two = *reinterpret_cast<const uint2*>(at);
      words[0] = two.x;
      words[1] = two.y;
    } else {
      words[0] = *reinterpret_cast<const std::uint32_t*>(at);
    }
  }
  // kBytes is the size of a contraction tile's fragments. offset() returns where tiles first_tile and
  // first_tile + 1 lie within these fragments.
  static constexpr int kBytes = kTokenTiles * Bits / 16 * (kLanes * 16);
  static __device__ __forceinline__ int offset(int first_tile, int lane) {
    const int word = first_tile / 2 * (Bits / 2);
    return (word / 4 * kLanes + lane) * 16 + word % 4 * 4;
  }
  template <class Visit>
  __device__ __forceinline__ void visit(const Visit& visit) const {
#pragma unroll
    for (int i = 0; i < Bits / 2; ++i) visit_word<Bits>(words[i], i * (4 / Bits), visit);
  }
};

// Holds the codes of all contraction tiles of a page.
template <int Bits, int Tiles>
struct PageCodes {
  TileCodes<Bits> of[Tiles];

  PageCodes() = default;
  // Loads the codes. Contraction tile k of this lane is tile k ^ mixed of the page.
  __device__ __forceinline__ PageCodes(const unsigned char* page, int first_tile, int mixed, int lane) {
    const unsigned char* codes = page + TileCodes<Bits>::offset(first_tile, lane);
#pragma unroll
    for (int k = 0; k < Tiles; ++k) of[k].load(codes + (k ^ mixed) * TileCodes<Bits>::kBytes);
  }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (auto& tile : of) {
#pragma unroll
      for (std::uint32_t& word : tile.words) word = 0;
    }
  }
  // Multiplies by contraction tile `k` and either adds to the sums or overwrites them. The function first
  // waits for all earlier products.
  template <bool Accumulate>
  __device__ __forceinline__ void multiply(int k, ColumnTiles<2>& sums, const ColumnOperand& b) const {
    TwoTiles tiles;
    of[k].visit([&](int m, auto a0, auto a1, auto a2, auto a3) { tiles.set(m, a0, a1, a2, a3); });
    tiles.multiply<Accumulate>(sums, b[k]);
    await_columns<1>();
  }
};

// ChannelKeyGroups scores keys with a grid per channel. Scales multiply the queries once per page. The term
// that zeros add to the scores becomes eight rows of a separate operand. For each warp's channels the term is
// stored as the sum of two half-precision numbers, which together are precise enough.
template <int Bits, int D>
struct ChannelKeyGroups : QueriesInOrder<D> {
  static constexpr int kCodes = ChannelKey<Bits, D>::kCodes;
  static constexpr QueryOrder kOrder = QueryOrder::rows;
  static constexpr int kOffsetUnit = 32;  // unit in which sums over 32 channels fit in half precision

  // Returns the factor of a product with the codes of a row. `row` is 0 for row g and 1 for row g + 8.
  static constexpr __host__ __device__ float unit(int tile, int row) { return code_unit<Bits>(tile, row); }

  // Holds a warp's part of the queries, which is two contraction tiles.
  struct Part {
    uint4 of[2][kColumnSets / 2];
    __device__ __forceinline__ Part(const SharedQueries<D, kColumnSets, kOrder>& queries, int part,
                                    int lane) {
#pragma unroll
      for (int i = 0; i < 4; ++i) of[i / 2][i % 2] = queries.rows(2 * part + i / 2, i % 2, lane);
    }
  };
  // Writes a warp's part of the scaled queries, and of the term that the zeros add to the scores.
  static __device__ __forceinline__ void prepare(const unsigned char* page, int part, const Part& queries,
                                                 unsigned char* scaled, unsigned char* offsets, int lane) {
    const unsigned char* parameters = page + kCodes + lane % 4 * (D / 2) + part * 16;
    const uint4 scale = *reinterpret_cast<const uint4*>(parameters);
    const uint4 z = *reinterpret_cast<const uint4*>(parameters + 2 * D);
    ColumnSums<kColumnSets> zero;
    const std::uint32_t to = shared_address(scaled) + part * (2 * ColumnOperand::kTileBytes) + lane * 16;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 q01 = queries.of[i][0], q23 = queries.of[i][1];
      const std::uint32_t first = i == 0 ? scale.x : scale.z, second = i == 0 ? scale.y : scale.w;
      zero.add(0, q01, i == 0 ? z.x : z.z, i == 0 ? z.y : z.w);
      zero.add(1, q23, i == 0 ? z.x : z.z, i == 0 ? z.y : z.w);
      const std::uint32_t tile = to + i * ColumnOperand::kTileBytes;
      store_matrices(tile, multiply_half2(q01.x, first), multiply_half2(q01.y, first),
                     multiply_half2(q23.x, first), multiply_half2(q23.y, first));
      store_matrices(tile + ColumnOperand::kHalfBytes, multiply_half2(q01.z, second),
                     multiply_half2(q01.w, second), multiply_half2(q23.z, second),
                     multiply_half2(q23.w, second));
    }
    const int set = lane % 4;  // lanes that share a row have equal sums
    float sum = set % 2 == 0 ? zero.of_pair[0][0] : zero.of_pair[0][2];
    if (set / 2 != 0) sum = set % 2 == 0 ? zero.of_pair[1][0] : zero.of_pair[1][2];
    sum *= 1.0F / kOffsetUnit;
    const std::uint32_t high = pack_half2(sum, 0);
    const float rest = sum - unpack_half2(high).x;
    reinterpret_cast<std::uint32_t*>(offsets)[(set * 8 + lane / 4) * 4 + part] = pack_half2(sum, rest);
  }

  using Codes = PageCodes<Bits, D / 16>;
  // Loads the codes of tiles first_tile and first_tile + 1.
  static __device__ __forceinline__ Codes load(const unsigned char* page, int first_tile, int lane) {
    return Codes(page, first_tile, 0, lane);
  }
  // Adds the term of the zeros to the products of all columns with the tokens of two tiles. The function
  // first waits for all products.
  static __device__ __forceinline__ void add_offsets(std::uint64_t offsets, ColumnTiles<2>& s) {
    TwoTiles units;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      constexpr std::uint32_t kUnits = kOffsetUnit * 0x00010001U;
      units.set(m, kUnits << code_shift<Bits>(m, 0), kUnits << code_shift<Bits>(m, 1), 0, 0);
    }
    units.multiply<true>(s, offsets);
    await_columns<0>();
#pragma unroll
    for (auto& tile : s) hold_columns(tile);
  }
};

template <int Bits, int D>
struct TokenValueGroups : TokenValueStrips<Bits, D> {
  using Codes = PageCodes<Bits, kTokenTiles>;
  // In tile k of the operand of weights, rows 2t and 2t + 1 come from tile k ^ 2t (part_of_lane). Lane t
  // therefore loads the codes of that tile.
  static __device__ __forceinline__ Codes load(const unsigned char* page, int first_tile, int lane) {
    return Codes(page, first_tile, lane % 4 * 2, lane);
  }
};

template <int KeyBits, int ValueBits, int D>
struct LinearGroups : NoTables {
  static constexpr bool kSealed = true;
  using Key = ChannelKeyGroups<KeyBits, D>;
  using Value = TokenValueGroups<ValueBits, D>;
};

}  // namespace kvant::cuda
