// Defines the common parts of the pairs of 4-bit formats for heads of 256 channels. Two warps share a page,
// and each warp has 64 of its tokens with all channels (kPageWarps). A warp's output sums take 64 registers
// per lane, twice as many as with heads of 128. The warp's scores and weights take half as many.
#pragma once

#include "device/cuda/pairs/linear.cuh"
#include "device/cuda/pairs/mask_codes.cuh"

namespace kvant::cuda {

inline constexpr int kWideDim = 256;
inline constexpr int kHalfTokens = kPageTokens / 2;
inline constexpr int kHalfTiles = kTokenTiles / 2;
using HalfScores = float[kHalfTiles][4];

// PageHalves has the members that the pairs for halves of pages share.
struct PageHalves : NoTables {
  static constexpr bool kSealed = true;
  static constexpr bool kCaps = true;
  static constexpr int kPageWarps = 2;
  static constexpr int kMaxWarps = max_consumer_warps(kWideDim);
  static constexpr int kQueryAt = 0;
  static constexpr int kTableBytes = KeptQuery<kWideDim>::kBytes;
};

__device__ __forceinline__ int half_of_page() {
  return part_of_page<2>();
}

// Returns the address of the key codes of this warp's half page, which for_each_fragment_of_block() takes as
// block 0.
__device__ __forceinline__ const unsigned char* key_codes_of_half(const unsigned char* page) {
  constexpr int kBlockBytes = kHalfTiles / 4 * kLanes * 16;  // bytes of a contraction tile
  return page + half_of_page() * kBlockBytes;
}

// Calls visit(k_tile, m_tile, a0, a1, a2, a3) for the value fragments of a half's tokens and m tiles
// [first_m, first_m + MTiles). k_tile counts from the first tile of the half.
template <int MTiles, class Visit>
__device__ __forceinline__ void for_each_value_fragment(const unsigned char* page, int lane, int first_m,
                                                        const Visit& visit) {
  constexpr int kPieces = kWideDim / 16 / 4;  // pieces of four fragments in a contraction tile
  const auto* pieces =
      reinterpret_cast<const uint4*>(page) + half_of_page() * (kHalfTiles * kPieces * kLanes) + lane;
#pragma unroll
  for (int k = 0; k < kHalfTiles; ++k) {
#pragma unroll
    for (int m = first_m; m < first_m + MTiles; m += 4) {
      const uint4 piece = pieces[(k * kPieces + m / 4) * kLanes];
      const std::uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
      for (int i = 0; i < 4; ++i)
        visit_word<4>(words[i], m + i, [&](int m_tile, auto a0, auto a1, auto a2, auto a3) {
          visit(k, m_tile, a0, a1, a2, a3);
        });
    }
  }
}

}  // namespace kvant::cuda
