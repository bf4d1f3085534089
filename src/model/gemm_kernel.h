// The innermost loop of the F32 matrix product: one tile of y += x w^T from packed panels, in registers
// (Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008).
#pragma once

#include <cstddef>
#include <span>

namespace kvant {

struct GemmKernel {
  const char* name;  // the instruction set
  int rows;          // of a tile: rows of x
  int outputs;       // of a tile: rows of w
  // y[r][o] = (add ? y[r][o] : 0) + sum over i < n of x[i][r] * w[i][o], summed in order of i with one
  // rounding a term where the machine fuses: a tile's values do not depend on its neighbours.
  // x [n, rows] and w [n, outputs] are packed, y has `stride` floats a row.
  void (*run)(int n, const float* x, const float* w, float* y, std::ptrdiff_t stride, bool add);
};

// Those that this machine can run, the fastest first.
std::span<const GemmKernel> gemm_kernels();

// packed[i][r] = source[r * stride + i] for i < n, r < count, and 0 for r in [count, width). width is a
// multiple of 4.
void pack_panel(const float* source, std::ptrdiff_t stride, int count, int n, int width, float* packed);

}  // namespace kvant
