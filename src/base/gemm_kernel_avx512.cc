#if defined(__x86_64__)
namespace kvant {
namespace {
constexpr int kLanes = 16, kStrip = 12;  // 24 of 32 registers hold sums.
}  // namespace
}  // namespace kvant

#include "base/gemm_kernel_body.h"

namespace kvant {

const GemmKernel& gemm_kernel_avx512() {
  static constexpr GemmKernel kernel{"avx512", kPanel, multiply};
  return kernel;
}

}  // namespace kvant
#endif
