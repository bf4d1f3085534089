// Implements the Viterbi search in AVX2. A row's costs stay in registers, 16 nodes in each.
#include "format/trellis_viterbi.h"

#if defined(__AVX2__)
#include <immintrin.h>

#include <cstddef>

namespace kvant {
namespace {

using Words = __m256i;
constexpr int kLanes = 16;  // costs in a register

Words load(const std::uint16_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
void store(std::uint16_t* to, Words x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x);
}
Words plus(Words a, Words b) {
  return _mm256_adds_epu16(a, b);
}
Words lesser(Words a, Words b) {
  return _mm256_min_epu16(a, b);
}
Words swap_halves(Words x) {
  return _mm256_permute4x64_epi64(x, 0x4e);
}
// Returns the mask for _mm256_shuffle_epi8 that selects 16-bit word w of a half.
constexpr short word(int w) {
  return static_cast<short>((2 * w + 1) << 8 | (2 * w));
}

#include "format/trellis_nodes_body.h"

// Node q's parents are 2q and 2q + 1, so the function separates the even nodes from the odd nodes.
[[gnu::always_inline]] inline void step(const std::uint16_t* costs, Nodes<1>& nodes) {
  const Words low_half = _mm256_set1_epi32(0xffff);
  Words parents[2][4];
#pragma GCC unroll 4
  for (int m = 0; m < 4; ++m) {
    const Words a = nodes.least[2 * m];
    const Words b = nodes.least[2 * m + 1];
    const Words even = _mm256_packus_epi32(_mm256_and_si256(a, low_half), _mm256_and_si256(b, low_half));
    const Words odd = _mm256_packus_epi32(_mm256_srli_epi32(a, 16), _mm256_srli_epi32(b, 16));
    parents[0][m] = _mm256_permute4x64_epi64(even, 0xd8);
    parents[1][m] = _mm256_permute4x64_epi64(odd, 0xd8);
  }
  add_and_reduce(parents, costs, nodes);
}

// Makes parents[k] = nodes k, k + 4, ..., k + 60, which is a transposition of [16][4].
[[gnu::always_inline]] inline void step(const std::uint16_t* costs, Nodes<2>& nodes) {
  const Words pairs =
      _mm256_setr_epi16(word(0), word(4), word(1), word(5), word(2), word(6), word(3), word(7), word(0),
                        word(4), word(1), word(5), word(2), word(6), word(3), word(7));
  Words by_k[4];  // Each half holds pairs of the nodes of k = 0, 1, 2, 3.
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) by_k[r] = _mm256_shuffle_epi8(nodes.least[r], pairs);
  const Words ab01 = _mm256_unpacklo_epi32(by_k[0], by_k[1]);
  const Words ab23 = _mm256_unpackhi_epi32(by_k[0], by_k[1]);
  const Words cd01 = _mm256_unpacklo_epi32(by_k[2], by_k[3]);
  const Words cd23 = _mm256_unpackhi_epi32(by_k[2], by_k[3]);
  const Words order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const Words parents[4][1] = {{_mm256_permutevar8x32_epi32(_mm256_unpacklo_epi64(ab01, cd01), order)},
                               {_mm256_permutevar8x32_epi32(_mm256_unpackhi_epi64(ab01, cd01), order)},
                               {_mm256_permutevar8x32_epi32(_mm256_unpacklo_epi64(ab23, cd23), order)},
                               {_mm256_permutevar8x32_epi32(_mm256_unpackhi_epi64(ab23, cd23), order)}};
  add_and_reduce(parents, costs, nodes);
}

// Makes parents[k] = nodes k, k + 8, k + 16, k + 24, repeated four times, which is a transposition of [4][8].
[[gnu::always_inline]] inline void step(const std::uint16_t* costs, Nodes<3>& nodes) {
  const __m128i a = _mm256_castsi256_si128(nodes.least[0]);
  const __m128i b = _mm256_extracti128_si256(nodes.least[0], 1);
  const __m128i c = _mm256_castsi256_si128(nodes.least[1]);
  const __m128i d = _mm256_extracti128_si256(nodes.least[1], 1);
  const __m128i ab[2] = {_mm_unpacklo_epi16(a, b), _mm_unpackhi_epi16(a, b)};
  const __m128i cd[2] = {_mm_unpacklo_epi16(c, d), _mm_unpackhi_epi16(c, d)};
  Words parents[8][1];
#pragma GCC unroll 4
  for (int two = 0; two < 4; ++two) {
    const __m128i abcd = two % 2 == 0 ? _mm_unpacklo_epi32(ab[two / 2], cd[two / 2])
                                      : _mm_unpackhi_epi32(ab[two / 2], cd[two / 2]);
    parents[2 * two][0] = _mm256_permute4x64_epi64(_mm256_castsi128_si256(abcd), 0x00);
    parents[2 * two + 1][0] = _mm256_permute4x64_epi64(_mm256_castsi128_si256(abcd), 0x55);
  }
  add_and_reduce(parents, costs, nodes);
}

// Parent k of every node is node k.
[[gnu::always_inline]] inline void step(const std::uint16_t* costs, Nodes<4>& nodes) {
  const Words halves[2] = {_mm256_permute4x64_epi64(nodes.least[0], 0x44),
                           _mm256_permute4x64_epi64(nodes.least[0], 0xee)};
  Words low[4];
#pragma GCC unroll 16
  for (int k = 0; k < 16; ++k) {
    const Words parent = _mm256_shuffle_epi8(halves[k / 8], _mm256_set1_epi16(word(k % 8)));
    const Words cost = plus(parent, load(costs + 16 * k));
    low[k % 4] = k < 4 ? cost : lesser(low[k % 4], cost);
  }
  nodes.least[0] = lesser(lesser(low[0], low[1]), lesser(low[2], low[3]));
}

// There are 8 nodes, held twice, so a register holds two parents of each node.
[[gnu::always_inline]] inline void step(const std::uint16_t* costs, Nodes<5>& nodes) {
  Words sums[4];
#pragma GCC unroll 4
  for (int two = 0; two < 4; ++two) {
    const Words parents = _mm256_setr_m128i(_mm_set1_epi16(word(2 * two)), _mm_set1_epi16(word(2 * two + 1)));
    sums[two] = plus(_mm256_shuffle_epi8(nodes.least[0], parents), load(costs + 16 * two));
  }
  const Words low = lesser(lesser(sums[0], sums[1]), lesser(sums[2], sums[3]));
  nodes.least[0] = lesser(low, swap_halves(low));
}

// There are 4 nodes, held four times, so a register holds four parents of each node.
[[gnu::always_inline]] inline void step(const std::uint16_t* costs, Nodes<6>& nodes) {
  const Words parents =
      _mm256_setr_epi16(word(0), word(0), word(0), word(0), word(1), word(1), word(1), word(1),  //
                        word(2), word(2), word(2), word(2), word(3), word(3), word(3), word(3));
  const Words sums = plus(_mm256_shuffle_epi8(nodes.least[0], parents), load(costs));
  const Words low = lesser(sums, swap_halves(sums));
  nodes.least[0] = lesser(low, _mm256_shuffle_epi32(low, 0x4e));
}

template <int B>
void subtract_the_least(Nodes<B>& nodes) {
  Words low = nodes.least[0];
  for (int r = 1; r < Nodes<B>::kRegisters; ++r) low = lesser(low, nodes.least[r]);
  const __m128i eight = _mm_min_epu16(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
  const Words floor = _mm256_broadcastw_epi16(_mm_minpos_epu16(eight));
  for (Words& least : nodes.least) least = _mm256_sub_epi16(least, floor);
}

// Loads least[0] into the layout of Nodes<B>, which repeats the nodes if there are fewer than 16.
template <int B>
Nodes<B> first_nodes(const std::uint16_t* least) {
  Nodes<B> nodes;
  for (int r = 0; r < Nodes<B>::kRegisters; ++r) nodes.least[r] = load(least + kLanes * r);
  if constexpr (B == 5) nodes.least[0] = _mm256_permute4x64_epi64(nodes.least[0], 0x44);
  if constexpr (B == 6) nodes.least[0] = _mm256_permute4x64_epi64(nodes.least[0], 0x00);
  return nodes;
}

// Adds 2, 4 or 8 costs pairwise, and sets the rest of the register to 2^16 - 1.
template <int P>
__m128i sums_of(const std::uint16_t* a, const std::uint16_t* b) {
  if constexpr (P == 2) {
    return _mm_or_si128(_mm_adds_epu16(_mm_loadu_si32(a), _mm_loadu_si32(b)), _mm_setr_epi32(0, -1, -1, -1));
  } else if constexpr (P == 4) {
    return _mm_or_si128(_mm_adds_epu16(_mm_loadu_si64(a), _mm_loadu_si64(b)), _mm_setr_epi32(0, 0, -1, -1));
  } else {
    return _mm_adds_epu16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a)),
                          _mm_loadu_si128(reinterpret_cast<const __m128i*>(b)));
  }
}

// Returns the index of the least of P sums.
template <int P>
int number_of_least(const std::uint16_t* a, const std::uint16_t* b) {
  if constexpr (P == 16) {
    const int low = _mm_cvtsi128_si32(_mm_minpos_epu16(sums_of<8>(a, b)));  // number << 16 | sum
    const int high = _mm_cvtsi128_si32(_mm_minpos_epu16(sums_of<8>(a + 8, b + 8)));
    return (low & 0xffff) <= (high & 0xffff) ? low >> 16 : 8 + (high >> 16);
  } else {
    return _mm_cvtsi128_si32(_mm_minpos_epu16(sums_of<P>(a, b))) >> 16;
  }
}

#include "format/trellis_viterbi_body.h"

}  // namespace

const ViterbiKernel* avx2_viterbi() {
  static constexpr ViterbiKernel kKernel = {"avx2", forward_of_bits, trace_of_bits};
  return &kKernel;
}

}  // namespace kvant

#else

namespace kvant {

const ViterbiKernel* avx2_viterbi() {
  return nullptr;
}

}  // namespace kvant

#endif
