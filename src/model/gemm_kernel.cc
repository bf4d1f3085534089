#include "model/gemm_kernel.h"

#include <xmmintrin.h>

namespace kvant {
namespace {

// Registers of each instruction set, and the same values in memory at any address.
struct Sse {
  using Vector = float __attribute__((vector_size(16)));
  using Memory = float __attribute__((vector_size(16), aligned(4), may_alias));
};
struct Avx2 {
  using Vector = float __attribute__((vector_size(32)));
  using Memory = float __attribute__((vector_size(32), aligned(4), may_alias));
};
struct Avx512 {
  using Vector = float __attribute__((vector_size(64)));
  using Memory = float __attribute__((vector_size(64), aligned(4), may_alias));
};

// Compiled once for each of them. The kRows * kVectors sums, a row of w and a value of x fit the registers.
template <class Isa, int kRows, int kVectors>
[[gnu::always_inline]] inline void run_tile(int n, const float* x, const float* w, float* y,
                                            std::ptrdiff_t stride, bool add) {
  using Vector = typename Isa::Vector;
  using Memory = typename Isa::Memory;
  constexpr int kLanes = sizeof(Vector) / sizeof(float);
  Vector sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kVectors; ++c) sum[r][c] = Vector{};
  }
  for (int i = 0; i < n; ++i, x += kRows, w += kLanes * kVectors) {
    Vector columns[kVectors];
#pragma GCC unroll 4
    for (int c = 0; c < kVectors; ++c) columns[c] = *reinterpret_cast<const Memory*>(w + c * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < kVectors; ++c) sum[r][c] += columns[c] * x[r];
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kVectors; ++c) {
      auto* out = reinterpret_cast<Memory*>(y + r * stride + c * kLanes);
      *out = add ? *out + sum[r][c] : sum[r][c];
    }
  }
}

[[gnu::target("avx512f")]] void run_avx512(int n, const float* x, const float* w, float* y,
                                           std::ptrdiff_t stride, bool add) {
  run_tile<Avx512, 12, 2>(n, x, w, y, stride, add);
}
[[gnu::target("avx2,fma")]] void run_avx2(int n, const float* x, const float* w, float* y,
                                          std::ptrdiff_t stride, bool add) {
  run_tile<Avx2, 4, 3>(n, x, w, y, stride, add);
}
void run_sse(int n, const float* x, const float* w, float* y, std::ptrdiff_t stride, bool add) {
  run_tile<Sse, 4, 2>(n, x, w, y, stride, add);
}

constexpr GemmKernel kKernels[] = {
    {"avx512", 12, 32, run_avx512}, {"avx2", 4, 24, run_avx2}, {"sse", 4, 8, run_sse}};

}  // namespace

std::span<const GemmKernel> gemm_kernels() {
  if (__builtin_cpu_supports("avx512f")) return kKernels;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return std::span(kKernels).subspan(1);
  return std::span(kKernels).subspan(2);
}

void pack_panel(const float* source, std::ptrdiff_t stride, int count, int n, int width, float* packed) {
  int r = 0;
  for (; r + 4 <= count; r += 4) {
    const float* rows = source + r * stride;
    int i = 0;
    for (; i + 4 <= n; i += 4) {
      __m128 a = _mm_loadu_ps(rows + i);
      __m128 b = _mm_loadu_ps(rows + stride + i);
      __m128 c = _mm_loadu_ps(rows + 2 * stride + i);
      __m128 d = _mm_loadu_ps(rows + 3 * stride + i);
      _MM_TRANSPOSE4_PS(a, b, c, d);
      float* out = packed + static_cast<std::ptrdiff_t>(i) * width + r;
      _mm_storeu_ps(out, a);
      _mm_storeu_ps(out + width, b);
      _mm_storeu_ps(out + 2 * width, c);
      _mm_storeu_ps(out + 3 * width, d);
    }
    for (; i < n; ++i) {
      for (int q = 0; q < 4; ++q)
        packed[static_cast<std::ptrdiff_t>(i) * width + r + q] = rows[q * stride + i];
    }
  }
  for (; r < width; ++r) {
    for (int i = 0; i < n; ++i) {
      packed[static_cast<std::ptrdiff_t>(i) * width + r] = r < count ? source[r * stride + i] : 0.0F;
    }
  }
}

}  // namespace kvant
