#if defined(__x86_64__)
namespace kvant {
namespace {
constexpr int kLanes = 8, kStrip = 6;  // 12 of 16 registers hold sums.
}  // namespace
}  // namespace kvant

#include "base/gemm_kernel_body.h"

namespace kvant {

const GemmKernel& gemm_kernel_avx2() {
  static constexpr GemmKernel kernel{"avx2", kPanel, multiply};
  return kernel;
}

}  // namespace kvant
#endif
