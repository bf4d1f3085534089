#include "base/gemm.h"

#include <algorithm>
#include <cstring>

#include "base/gemm_kernels.h"

namespace kvant {
namespace {

const GemmKernel& find_best_kernel() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) return gemm_kernel_avx512();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return gemm_kernel_avx2();
#endif
  return gemm_kernel_portable();
}
const GemmKernel& best_kernel() {
  static const GemmKernel& kernel = find_best_kernel();
  return kernel;
}

// With so many rows of a, reading a panel of b whose rows lie far apart takes longer than packing it: a
// quarter of the whole product's time.
constexpr int kRowsWorthPacking = 64;

using Four = float __attribute__((vector_size(4 * sizeof(float))));

// Four columns of b, each contiguous, become columns of the panel: 4 x 4 blocks turn in registers.
void turn_four(const float* const columns[4], int k, float* panel, int panel_stride) {
  int p = 0;
  for (; p + 4 <= k; p += 4) {
    Four c[4];
    for (int i = 0; i < 4; ++i) std::memcpy(&c[i], columns[i] + p, sizeof(Four));
    const Four low01 = __builtin_shufflevector(c[0], c[1], 0, 4, 1, 5);
    const Four high01 = __builtin_shufflevector(c[0], c[1], 2, 6, 3, 7);
    const Four low23 = __builtin_shufflevector(c[2], c[3], 0, 4, 1, 5);
    const Four high23 = __builtin_shufflevector(c[2], c[3], 2, 6, 3, 7);
    const Four rows[4] = {__builtin_shufflevector(low01, low23, 0, 1, 4, 5),
                          __builtin_shufflevector(low01, low23, 2, 3, 6, 7),
                          __builtin_shufflevector(high01, high23, 0, 1, 4, 5),
                          __builtin_shufflevector(high01, high23, 2, 3, 6, 7)};
    for (int i = 0; i < 4; ++i) std::memcpy(panel + (p + i) * panel_stride, &rows[i], sizeof(Four));
  }
  for (; p < k; ++p) {
    for (int i = 0; i < 4; ++i) panel[p * panel_stride + i] = columns[i][p];
  }
}

// The first n columns of b, n <= width, as a panel [k, width] whose other columns are 0.
void pack_panel(const GemmOperand& b, int k, int n, int width, float* panel) {
  if (b.col_stride == 1 && n == width) {
    for (int p = 0; p < k; ++p)
      std::memcpy(panel + static_cast<std::ptrdiff_t>(p) * width, b.data + p * b.row_stride,
                  width * sizeof(float));
    return;
  }
  int j = 0;
  if (b.row_stride == 1) {
    for (; j + 4 <= n; j += 4) {
      const float* columns[4];
      for (int i = 0; i < 4; ++i) columns[i] = b.data + (j + i) * b.col_stride;
      turn_four(columns, k, panel + j, width);
    }
  }
  for (int p = 0; p < k; ++p) {
    float* row = panel + static_cast<std::ptrdiff_t>(p) * width;
    for (int i = j; i < n; ++i) row[i] = b.data[p * b.row_stride + i * b.col_stride];
    std::fill(row + n, row + width, 0.0F);
  }
}

}  // namespace

void gemm(int m, int n, int k, const GemmOperand& a, const GemmOperand& b, bool accumulate, float* c,
          std::ptrdiff_t c_stride) {
  const GemmKernel& kernel = best_kernel();
  alignas(64) float panel[kGemmDepth * kMaxGemmPanel];
  for (int first = 0; first == 0 || first < k; first += kGemmDepth) {
    const int depth = std::min(kGemmDepth, k - first);
    const float* a_part = a.data + first * a.col_stride;
    for (int column = 0; column < n; column += kernel.panel) {
      const int n_cols = std::min(kernel.panel, n - column);
      GemmOperand part{b.data + first * b.row_stride + column * b.col_stride, b.row_stride, b.col_stride};
      if (b.col_stride != 1 || n_cols < kernel.panel || m >= kRowsWorthPacking) {
        pack_panel(part, depth, n_cols, kernel.panel, panel);
        part = {panel, kernel.panel, 1};
      }
      kernel.multiply(m, n_cols, depth, a_part, a.row_stride, a.col_stride, part.data, part.row_stride,
                      accumulate || first > 0, c + column, c_stride);
    }
  }
}

void PackedMatrix::resize(int k, int n) {
  k_ = k;
  n_ = n;
  panels_.resize(static_cast<std::size_t>(n_parts()) * k * best_kernel().panel);
}

int PackedMatrix::n_parts() const {
  return (n_ + best_kernel().panel - 1) / best_kernel().panel;
}

void PackedMatrix::pack(const GemmOperand& b, int part) {
  const int width = best_kernel().panel, column = part * width;
  pack_panel({b.data + column * b.col_stride, b.row_stride, b.col_stride}, k_, std::min(width, n_ - column),
             width, panels_.data() + static_cast<std::ptrdiff_t>(part) * k_ * width);
}

void gemm(int m, int n, const GemmOperand& a, const PackedMatrix& b, bool accumulate, float* c,
          std::ptrdiff_t c_stride) {
  const GemmKernel& kernel = best_kernel();
  for (int first = 0; first == 0 || first < b.k_; first += kGemmDepth) {
    const int depth = std::min(kGemmDepth, b.k_ - first);
    for (int column = 0; column < n; column += kernel.panel) {
      const float* panel = b.panels_.data() + static_cast<std::ptrdiff_t>(column) * b.k_;
      kernel.multiply(m, std::min(kernel.panel, n - column), depth, a.data + first * a.col_stride,
                      a.row_stride, a.col_stride, panel + static_cast<std::ptrdiff_t>(first) * kernel.panel,
                      kernel.panel, accumulate || first > 0, c + column, c_stride);
    }
  }
}

}  // namespace kvant
