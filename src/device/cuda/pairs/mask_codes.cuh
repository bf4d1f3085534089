// Decodes numbers of few bits with masks, two numbers at a time. Numbers of 4 and 2 bits need one mask.
// Numbers of 3, 5 and 6 bits need a mask for each of two planes (plane_bit in page_layout.h). A number at bit
// p of a 16-bit half is a subnormal half-precision number, code * 2^(p - 24). Codes are therefore exact
// factors without any conversion.
#pragma once

#include "device/cuda/pairs/weights.cuh"

namespace kvant::cuda {

// Calls visit(m_tile, a0, a1, a2, a3) for the fragments in a word of codes: one with 4 bits, two with 2 bits.
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

// Holds N words of a lane's stream of codes, starting at a word with an even index.
template <int N>
struct StreamWords {
  std::uint32_t words[N];

  __device__ __forceinline__ StreamWords(const unsigned char* codes, int first, int lane) {
    const auto* pieces = reinterpret_cast<const uint4*>(codes);
    if constexpr (N == 1) {
      words[0] = reinterpret_cast<const std::uint32_t*>(pieces + first / 4 * kLanes + lane)[first % 4];
    } else if (N == 4 && first % 4 == 0) {
      const uint4 piece = pieces[first / 4 * kLanes + lane];
      words[0] = piece.x;
      words[1] = piece.y;
      words[2] = piece.z;
      words[3] = piece.w;
    } else {
#pragma unroll
      for (int i = 0; i < N; i += 2) {
        const int at = first + i;
        const uint2 two = reinterpret_cast<const uint2*>(pieces + at / 4 * kLanes + lane)[at % 4 / 2];
        words[i] = two.x;
        words[i + 1] = two.y;
      }
    }
  }
};

// A number's lower kWide bits lie in one plane, and its other kNarrow bits in a narrower plane.
template <int Bits>
inline constexpr int kWide = Bits >= 4 ? 4 : 2;
template <int Bits>
inline constexpr int kNarrow = Bits - kWide<Bits>;

// Returns the number of the bit of a 16-bit half at which a masked code begins.
template <int Bits>
__host__ __device__ constexpr int code_shift(int m_tile, int row) {
  return kWide<Bits> == 4 ? row * 4 : m_tile % 2 * 4 + row * 2;
}

// Calls visit(i, a0, a1, a2, a3) for fragments i and i + 1 of 3-bit numbers. `low` has the two lower bits of
// each number, and `high` has the third bits from bit 0 on. The function joins the bits of both fragments at
// once.
template <class Visit>
__device__ __forceinline__ void visit_two_of_3_bits(std::uint32_t low, std::uint32_t high, int i,
                                                    const Visit& visit) {
  constexpr std::uint32_t kLow = 0x33333333;
  std::uint32_t a[2][4];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    // Bits 0 and 2 of each byte, or bits 1 and 3 in row 1, move to bits 2 and 6. The product also has their
    // sum in bits 4 and 5, which belong to the next number and are masked out. The multiplication unit does
    // two shifts at once.
    const std::uint32_t spread = (high & (0x05050505U << row)) * (20U >> row);
    const std::uint32_t joined = (low >> (2 * row) & kLow) | (spread & ~kLow);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint32_t moved = half == 0 ? joined << (2 * row) : joined >> (8 - 2 * row);
      a[0][2 * half + row] = moved & (0x00070007U << code_shift<3>(0, row));
      a[1][2 * half + row] = moved & (0x00070007U << code_shift<3>(1, row));
    }
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) visit(i + j, a[j][0], a[j][1], a[j][2], a[j][3]);
}

// Calls visit(i, a0, a1, a2, a3) for up to four fragments whose numbers are split into two planes, starting
// at the first number of each plane.
template <int Bits, int Fragments, int LowWords, int HighWords, class Visit>
__device__ __forceinline__ void visit_planes(const std::uint32_t (&low_words)[LowWords],
                                             const std::uint32_t (&high_words)[HighWords],
                                             const Visit& visit) {
  constexpr int kLow = kWide<Bits>;
  constexpr int kHigh = kNarrow<Bits>;
  if constexpr (Bits == 3) {
    static_assert(Fragments % 2 == 0);
#pragma unroll
    for (int i = 0; i < Fragments; i += 2)
      visit_two_of_3_bits(low_words[i / 2], high_words[i / 4] >> i % 4 * 2, i, visit);
  } else {
#pragma unroll
    for (int i = 0; i < Fragments; ++i) {
      std::uint32_t a[4];
#pragma unroll
      for (int reg = 0; reg < 4; ++reg) {
        const int to = code_shift<Bits>(i, reg % 2);
        const std::uint32_t low_word = low_words[i * kLow / 4] >> (reg / 2 * 8);
        const std::uint32_t high_word = high_words[i * kHigh / 4];
        const int from = reg / 2 * 8 + (i % (4 / kHigh) * 2 + reg % 2) * kHigh;
        const int up = to + kLow - from;
        const std::uint32_t moved = up >= 0 ? high_word << up : high_word >> -up;
        a[reg] = (low_word & (((1U << kLow) - 1) * 0x00010001U << to)) |
                 (moved & (((1U << kHigh) - 1) * 0x00010001U << (to + kLow)));
      }
      visit(i, a[0], a[1], a[2], a[3]);
    }
  }
}

// Calls visit(i, a0, a1, a2, a3) as visit_planes() does, for the first or the second half of a run.
template <int Bits, class Visit>
__device__ __forceinline__ void visit_half_run(const unsigned char* codes, int run, int half, int lane,
                                               const Visit& visit) {
  constexpr int kLow = kWide<Bits>;
  constexpr int kHigh = kNarrow<Bits>;
  const int first = run * 2 * Bits;
  const StreamWords<kLow> low(codes, first + half * kLow, lane);
  const StreamWords<kHigh> high(codes, first + 2 * kLow + half * kHigh, lane);
  visit_planes<Bits, 4>(low.words, high.words, visit);
}

// Calls visit(k_tile, m_tile, a0, a1, a2, a3) for the fragments of contraction tiles [first, last).
template <int Bits, int MTiles, class Visit>
__device__ __forceinline__ void for_each_fragment(const unsigned char* codes, int lane, int first, int last,
                                                  const Visit& visit) {
  if constexpr (kNarrow<Bits> != 0) {
#pragma unroll
    for (int fragment = first * MTiles; fragment < last * MTiles; fragment += 4) {
      visit_half_run<Bits>(codes, fragment / kRun, fragment % kRun / 4, lane,
                           [&](int i, auto a0, auto a1, auto a2, auto a3) {
                             visit(fragment / MTiles, fragment % MTiles + i, a0, a1, a2, a3);
                           });
    }
    return;
  }
  constexpr int kFragments = 16 / Bits;  // 4 or 8 fragments in a piece of 16 bytes
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

// Returns the factor that corrects products for the bit positions of a row's codes. `row` is 0 for row g and
// 1 for row g + 8.
template <int Bits>
__host__ __device__ constexpr float code_unit(int m_tile, int row) {
  return static_cast<float>(1 << (24 - code_shift<Bits>(m_tile, row)));
}

}  // namespace kvant::cuda
