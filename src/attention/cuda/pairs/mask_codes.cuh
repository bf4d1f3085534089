// Codes of 4 and 2 bits that one mask for each pair lifts out of a word. A code at bit p of a 16-bit half is
// a subnormal half-precision number, code * 2^(p - 24): an exact factor, without any conversion.
#pragma once

#include "attention/cuda/pairs/weights.cuh"

namespace kvant::cuda {

// Calls visit(m_tile, a0, a1, a2, a3) for the fragments that lie in a word of codes: one of 4 bits, two of 2
// bits.
template <int Bits, class Visit>
__device__ __forceinline__ void visit_word(std::uint32_t w, int m_tile, const Visit& visit) {
  const std::uint32_t v = w >> 8;
  if constexpr (Bits == 4) {
    visit(m_tile, w & 0x000f000fU, w & 0x00f000f0U, v & 0x000f000fU, v & 0x00f000f0U);
  } else {
    visit(m_tile, w & 0x00030003U, w & 0x000c000cU, v & 0x00030003U, v & 0x000c000cU);
    visit(m_tile + 1, w & 0x00300030U, w & 0x00c000c0U, v & 0x00300030U, v & 0x00c000c0U);
  }
}

// Calls visit(k_tile, m_tile, a0, a1, a2, a3) for the fragments of contraction tiles [first, last).
template <int Bits, int MTiles, class Visit>
__device__ __forceinline__ void for_each_fragment(const unsigned char* codes, int lane, int first, int last,
                                                  const Visit& visit) {
  static_assert(Bits == 4 || Bits == 2);
  constexpr int kFragments = 16 / Bits;  // of a piece of 16 bytes: 4 or 8
  const auto* pieces = reinterpret_cast<const uint4*>(codes) + lane;
#pragma unroll
  for (int fragment = first * MTiles; fragment < last * MTiles; fragment += kFragments) {
    const uint4 piece = pieces[fragment / kFragments * kLanes];
    const std::uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int f = fragment + i * (4 / Bits);
      visit_word<Bits>(words[i], f % MTiles, [&](int m_tile, auto a0, auto a1, auto a2, auto a3) {
        visit(f / MTiles, m_tile, a0, a1, a2, a3);
      });
    }
  }
}

// What a product with the codes of a row must be multiplied by. row: 0 for g, 1 for g + 8.
template <int Bits>
__host__ __device__ constexpr float code_unit(int m_tile, int row) {
  const int bit = Bits == 4 ? row * 4 : (m_tile % 2) * 4 + row * 2;
  return static_cast<float>(1 << (24 - bit));
}

}  // namespace kvant::cuda
