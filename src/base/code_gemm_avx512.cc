#include "base/code_gemm_kernel.h"

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include <immintrin.h>

namespace kvant {
namespace {

constexpr int kLanes = 16, kRegisters = kCodePanel / kLanes, kQuads = kCodeBlockSize / 4;
constexpr float kMaxNumber = 32512;  // keeps both bytes within -128 .. 127
constexpr float kTiny = 1e-30F;

// kStrip is the number of rows of x that are multiplied together. The 16 integer sums and 8 F32 sums of these
// rows stay in registers.
constexpr int kStrip = 2;

// Rounds one block of one row. The sum of 32 products of a byte and a code is at most 127 * 255 * 32, which
// is below 2^20. High bytes times 256 plus low bytes are therefore far below 2^31.
inline void round_block(const float* x, std::uint32_t* quads, float& unit, float& sum) {
  const __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + kLanes);
  const float largest = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)));
  constexpr int kNotFinite = 0x99;  // quiet and signalling NaN, both infinities
  if ((_mm512_fpclass_ps_mask(a, kNotFinite) | _mm512_fpclass_ps_mask(b, kNotFinite)) != 0) {
    for (int i = 0; i < 2 * kQuads; ++i) quads[i] = 0;
    unit = sum = __builtin_nanf("");
    return;
  }
  unit = largest < kTiny ? 0 : largest / kMaxNumber;
  const __m512 factor = _mm512_set1_ps(largest < kTiny ? 0 : kMaxNumber / largest);
  __m512i total = _mm512_setzero_si512();
  for (int half = 0; half < 2; ++half) {
    const __m512i numbers = _mm512_cvtps_epi32(_mm512_mul_ps(half == 0 ? a : b, factor));
    total = _mm512_add_epi32(total, numbers);
    const __m512i above = _mm512_srai_epi32(_mm512_add_epi32(numbers, _mm512_set1_epi32(128)), 8);
    const __m128i high = _mm512_cvtepi32_epi8(above), low = _mm512_cvtepi32_epi8(numbers);
    auto* to = reinterpret_cast<__m128i*>(quads + 8 * half);
    _mm_storeu_si128(to, _mm_unpacklo_epi32(high, low));
    _mm_storeu_si128(to + 1, _mm_unpackhi_epi32(high, low));
  }
  sum = static_cast<float>(_mm512_reduce_add_epi32(total)) * unit;
}

void round_rows(const float* x, std::ptrdiff_t stride, int first, int end, int k,
                const NumberRowsView& rows) {
  const int n_blocks = k / kCodeBlockSize;
  for (int r = first; r < end; ++r) {
    for (int block = 0; block < n_blocks; ++block) {
      const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(r) * n_blocks + block;
      round_block(x + r * stride + block * kCodeBlockSize, rows.quads + at * 2 * kQuads, rows.unit[at],
                  rows.sum[at]);
    }
  }
}

template <int R>
inline __attribute__((always_inline)) void multiply_strip(const NumberRowsView& rows, int row, int n_blocks,
                                                          const CodePanelView& panel, int n_columns, float* y,
                                                          std::ptrdiff_t y_stride) {
  __m512 out[R][kRegisters] = {};
  const std::uint8_t* bytes = panel.bytes;
  const std::uint32_t* quads[R];
  const float *unit[R], *sum[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(row + r) * n_blocks;
    quads[r] = rows.quads + first * 2 * kQuads;
    unit[r] = rows.unit + first;
    sum[r] = rows.sum + first;
  }
  for (int block = 0; block < n_blocks; ++block) {
    __m512i high[R][kRegisters] = {}, low[R][kRegisters] = {};
    for (int quad = 0; quad < kQuads; ++quad, bytes += 4 * kCodePanel) {
      __m512i codes[kRegisters];
#pragma GCC unroll 8
      for (int l = 0; l < kRegisters; ++l) codes[l] = _mm512_loadu_si512(bytes + 64 * l);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const __m512i of_high = _mm512_set1_epi32(static_cast<int>(quads[r][2 * quad]));
        const __m512i of_low = _mm512_set1_epi32(static_cast<int>(quads[r][2 * quad + 1]));
#pragma GCC unroll 8
        for (int l = 0; l < kRegisters; ++l) {
          high[r][l] = _mm512_dpbusd_epi32(high[r][l], codes[l], of_high);
          low[r][l] = _mm512_dpbusd_epi32(low[r][l], codes[l], of_low);
        }
      }
    }
    const float* scale = panel.scale + static_cast<std::ptrdiff_t>(block) * kCodePanel;
    const float* offset = panel.offset + static_cast<std::ptrdiff_t>(block) * kCodePanel;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m512 by = _mm512_set1_ps(unit[r][block]), of_block = _mm512_set1_ps(sum[r][block]);
#pragma GCC unroll 8
      for (int l = 0; l < kRegisters; ++l) {
        const __m512 total =
            _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high[r][l], 8), low[r][l]));
        out[r][l] = _mm512_fmadd_ps(total, _mm512_mul_ps(by, _mm512_loadu_ps(scale + kLanes * l)), out[r][l]);
        out[r][l] = _mm512_fmadd_ps(of_block, _mm512_loadu_ps(offset + kLanes * l), out[r][l]);
      }
      quads[r] += 2 * kQuads;
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int l = 0; l < kRegisters; ++l) {
      const int left = n_columns - kLanes * l;
      const auto wanted = static_cast<__mmask16>(left >= kLanes ? 0xffff : left <= 0 ? 0 : (1 << left) - 1);
      _mm512_mask_storeu_ps(y + (row + r) * y_stride + kLanes * l, wanted, out[r][l]);
    }
  }
}

void multiply(const NumberRowsView& rows, int first, int end, int k, const CodePanelView& panel,
              int n_columns, float* y, std::ptrdiff_t y_stride) {
  const int n_blocks = k / kCodeBlockSize;
  int row = first;
  for (; row + kStrip <= end; row += kStrip)
    multiply_strip<kStrip>(rows, row, n_blocks, panel, n_columns, y, y_stride);
  for (; row < end; ++row) multiply_strip<1>(rows, row, n_blocks, panel, n_columns, y, y_stride);
}

}  // namespace

const CodeGemm* code_gemm_avx512() {
  static constexpr CodeGemm gemm{round_rows, multiply};
  return &gemm;
}

}  // namespace kvant

#else

namespace kvant {

const CodeGemm* code_gemm_avx512() {
  return nullptr;
}

}  // namespace kvant

#endif
