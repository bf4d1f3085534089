// Declares the inner loops of gemm(), one for each instruction set. gemm() chooses the best loop that this
// processor can run.
#pragma once

#include <cstddef>

namespace kvant {

// kGemmDepth is the number of values of k that are summed in registers before c is read and written. A panel
// of b with this many rows stays in the L2 cache.
constexpr int kGemmDepth = 384;
constexpr int kMaxGemmPanel = 32;  // columns

struct GemmKernel {
  const char* name;
  int panel;  // columns of b that are multiplied at once
  // Computes c [m, n_cols] = or += a [m, k] times the first n_cols columns of a panel [k, panel]. Rows of the
  // panel lie b_stride values apart.
  void (*multiply)(int m, int n_cols, int k, const float* a, std::ptrdiff_t a_row_stride,
                   std::ptrdiff_t a_col_stride, const float* b, std::ptrdiff_t b_stride, bool accumulate,
                   float* c, std::ptrdiff_t c_stride);
};

const GemmKernel& gemm_kernel_portable();
#if defined(__x86_64__)
const GemmKernel& gemm_kernel_avx2();
const GemmKernel& gemm_kernel_avx512();
#endif

}  // namespace kvant
