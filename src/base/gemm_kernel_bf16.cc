#include "base/half_gemm_kernel.h"

#if defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#include <immintrin.h>

#include <cstring>

namespace kvant {
namespace {

constexpr int kLanes = 16;
constexpr int kStrip = 12;  // 24 of 32 registers hold sums.

inline __m512 row_part(const float* row, int n) {
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1U << n) - 1), row);
}

void round_rows(const float* x, std::ptrdiff_t stride, int rows, int k, std::uint32_t* pairs) {
  const int n_pairs = (k + 1) / 2;
  for (int r = 0; r < rows; ++r, x += stride, pairs += n_pairs) {
    int i = 0;
    for (; i + 2 * kLanes <= k; i += 2 * kLanes) {
      const __m512bh both = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + i + kLanes), _mm512_loadu_ps(x + i));
      std::memcpy(pairs + i / 2, &both, sizeof both);
    }
    for (; i < k; i += kLanes) {
      const int n = k - i < kLanes ? k - i : kLanes;
      const __m256bh part = _mm512_cvtneps_pbh(row_part(x + i, n));
      std::memcpy(pairs + i / 2, &part, static_cast<std::size_t>((n + 1) / 2) * sizeof *pairs);
    }
  }
}

// Rounds a row and the next one, or zeros if the panel ends, and interleaves their numbers, column by column.
inline void pack_pair(const float* row, bool has_next, std::uint32_t* pairs) {
  for (int half = 0; half < kHalfGemmPanel; half += kLanes) {
    const __m512 above = has_next ? _mm512_loadu_ps(row + kHalfGemmPanel + half) : _mm512_setzero_ps();
    const __m512bh a = _mm512_cvtne2ps_pbh(above, _mm512_loadu_ps(row + half));
    __m512i numbers;
    std::memcpy(&numbers, &a, sizeof a);
    const __m512i low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(numbers));
    const __m512i high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(numbers, 1));
    _mm512_storeu_si512(pairs + half, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
  }
}

void pack(const float* panel, int k, std::uint32_t* pairs) {
  for (int p = 0; p < k; p += 2, pairs += kHalfGemmPanel) {
    pack_pair(panel + static_cast<std::ptrdiff_t>(p) * kHalfGemmPanel, p + 1 < k, pairs);
  }
}

inline __m512bh numbers_at(const std::uint32_t* pairs) {
  __m512bh numbers;
  std::memcpy(&numbers, pairs, sizeof numbers);
  return numbers;
}

inline __m512bh everywhere(const std::uint32_t* pair) {
  const __m512i all = _mm512_set1_epi32(static_cast<int>(*pair));
  __m512bh numbers;
  std::memcpy(&numbers, &all, sizeof numbers);
  return numbers;
}

// As in gemm_kernel_body.h, each base pointer serves three rows of a, which one addressing mode reaches.
template <int rows>
inline __attribute__((always_inline)) void multiply_strip(int n_cols, int n_pairs, const std::uint32_t* a,
                                                          std::ptrdiff_t a_row, const std::uint32_t* b,
                                                          bool accumulate, float* c,
                                                          std::ptrdiff_t c_stride) {
  constexpr int kBases = (rows + 2) / 3;
  __m512 sums[rows][2] = {};
  const std::uint32_t* base[kBases];
#pragma GCC unroll 16
  for (int i = 0; i < kBases; ++i) base[i] = a + 3 * i * a_row;
  for (int p = 0; p < n_pairs; ++p, b += kHalfGemmPanel) {
    const __m512bh b0 = numbers_at(b), b1 = numbers_at(b + kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
      const __m512bh x = everywhere(base[r / 3] + r % 3 * a_row);
      sums[r][0] = _mm512_dpbf16_ps(sums[r][0], x, b0);
      sums[r][1] = _mm512_dpbf16_ps(sums[r][1], x, b1);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kBases; ++i) ++base[i];
  }
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) {
    float* out = c + r * c_stride;
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const int n = n_cols - half * kLanes;
      const auto mask = static_cast<__mmask16>(n >= kLanes ? 0xFFFF : n > 0 ? (1U << n) - 1 : 0);
      __m512 sum = sums[r][half];
      if (accumulate) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, out + half * kLanes));
      _mm512_mask_storeu_ps(out + half * kLanes, mask, sum);
    }
  }
}

void multiply(int m, int n_cols, int n_pairs, const std::uint32_t* a, std::ptrdiff_t a_row,
              const std::uint32_t* b, bool accumulate, float* c, std::ptrdiff_t c_stride) {
  constexpr int kShortStrip = kStrip / 3;
  int row = 0;
  for (; row + kStrip <= m; row += kStrip)
    multiply_strip<kStrip>(n_cols, n_pairs, a + row * a_row, a_row, b, accumulate, c + row * c_stride,
                           c_stride);
  for (; row + kShortStrip <= m; row += kShortStrip)
    multiply_strip<kShortStrip>(n_cols, n_pairs, a + row * a_row, a_row, b, accumulate, c + row * c_stride,
                                c_stride);
  for (; row < m; ++row)
    multiply_strip<1>(n_cols, n_pairs, a + row * a_row, a_row, b, accumulate, c + row * c_stride, c_stride);
}

}  // namespace

const HalfGemmKernel* half_gemm_kernel() {
  static constexpr HalfGemmKernel kernel{round_rows, pack, multiply};
  return &kernel;
}

}  // namespace kvant
#else
namespace kvant {
const HalfGemmKernel* half_gemm_kernel() {
  return nullptr;
}
}  // namespace kvant
#endif
