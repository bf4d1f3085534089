#include "base/gemm.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/gemm_kernels.h"
#include "base/half_gemm_kernel.h"
#include "base/processor_features.h"

namespace kvant {
namespace {

const GemmKernel& find_best_kernel() {
#if defined(__x86_64__)
  const ProcessorFeatures& has = processor_features();
  if (has.avx512) return gemm_kernel_avx512();
  if (has.avx2 && has.fma) return gemm_kernel_avx2();
#endif
  return gemm_kernel_portable();
}
const GemmKernel& best_kernel() {
  static const GemmKernel& kernel = find_best_kernel();
  return kernel;
}

// If `a` has at least this many rows, packing a panel of b whose rows lie far apart is faster than reading in
// place, which would take a quarter of the whole product's time.
constexpr int kRowsWorthPacking = 64;

using Four = float __attribute__((vector_size(4 * sizeof(float))));

// Turns four columns of b, each contiguous, into columns of the panel by transposing 4 x 4 blocks in
// registers.
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

// Packs the first n columns of b, n <= width, as a panel [k, width] whose other columns are 0.
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

namespace {

const HalfGemmKernel* find_half_kernel() {
  // gemm_kernel_bf16.cc is compiled for these instructions.
  const ProcessorFeatures& has = processor_features();
  return has.avx512 && has.avx512_vnni && has.avx512_bf16 ? half_gemm_kernel() : nullptr;
}
const HalfGemmKernel* half_kernel() {
  static const HalfGemmKernel* kernel = find_half_kernel();
  return kernel;
}

// kHalfRows and kHalfDepth are the size of a block of rounded rows. The block stays in the L2 cache and a
// panel in L1.
constexpr int kHalfRows = 128, kHalfDepth = 768;

}  // namespace

GemmPrecision fastest_gemm_precision() {
  return half_kernel() != nullptr ? GemmPrecision::bf16 : GemmPrecision::f32;
}

void PackedMatrix::resize(int k, int n, GemmPrecision precision) {
  KVANT_CHECK(precision == GemmPrecision::f32 || half_kernel() != nullptr, "numbers that nothing multiplies");
  k_ = k;
  n_ = n;
  const bool half = precision == GemmPrecision::bf16;
  panel_ = half ? kHalfGemmPanel : best_kernel().panel;
  panels_.resize(half ? 0 : static_cast<std::size_t>(n_parts()) * k * panel_);
  pairs_.resize(half ? static_cast<std::size_t>(n_parts()) * n_pairs() * panel_ : 0);
}

int PackedMatrix::n_parts() const {
  return (n_ + panel_ - 1) / panel_;
}

void PackedMatrix::pack(const GemmOperand& b, int part) {
  const int column = part * panel_, n = std::min(panel_, n_ - column);
  const auto from_row = [&](int row) {
    return GemmOperand{b.data + row * b.row_stride + column * b.col_stride, b.row_stride, b.col_stride};
  };
  if (pairs_.empty()) {
    pack_panel(from_row(0), k_, n, panel_, panels_.data() + static_cast<std::ptrdiff_t>(part) * k_ * panel_);
    return;
  }
  alignas(64) float panel[kGemmDepth * kHalfGemmPanel];
  for (int first = 0; first < k_; first += kGemmDepth) {
    const int depth = std::min(kGemmDepth, k_ - first);
    pack_panel(from_row(first), depth, n, panel_, panel);
    half_kernel()->pack(panel, depth, pairs_.data() + pairs_at(part) + first / 2 * panel_);
  }
}

void PackedMatrix::multiply_rounded(int m, int n, const GemmOperand& a, bool accumulate, float* c,
                                    std::ptrdiff_t c_stride) const {
  KVANT_CHECK(a.col_stride == 1, "rows that lie scattered");
  const HalfGemmKernel& kernel = *half_kernel();
  std::vector<std::uint32_t> rows(static_cast<std::size_t>(std::min(m, kHalfRows)) * kHalfDepth / 2);
  for (int row = 0; row < m; row += kHalfRows) {
    const int n_rows = std::min(kHalfRows, m - row);
    for (int first = 0; first == 0 || first < k_; first += kHalfDepth) {
      const int depth = std::min(kHalfDepth, k_ - first), depth_pairs = (depth + 1) / 2;
      kernel.round_rows(a.data + row * a.row_stride + first, a.row_stride, n_rows, depth, rows.data());
      for (int column = 0; column < n; column += panel_) {
        kernel.multiply(n_rows, std::min(panel_, n - column), depth_pairs, rows.data(), depth_pairs,
                        pairs_.data() + pairs_at(column / panel_) + first / 2 * panel_,
                        accumulate || first > 0, c + row * c_stride + column, c_stride);
      }
    }
  }
}

void gemm(int m, int n, const GemmOperand& a, const PackedMatrix& b, bool accumulate, float* c,
          std::ptrdiff_t c_stride) {
  if (!b.pairs_.empty()) return b.multiply_rounded(m, n, a, accumulate, c, c_stride);
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
