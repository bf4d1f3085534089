namespace kvant {
namespace {
constexpr int kLanes = 4, kStrip = 6;  // 12 of 16 registers hold sums.
}  // namespace
}  // namespace kvant

#include "base/gemm_kernel_body.h"

namespace kvant {

const GemmKernel& gemm_kernel_portable() {
  static constexpr GemmKernel kernel{"portable", kPanel, multiply};
  return kernel;
}

}  // namespace kvant
