namespace kvant {
namespace {
#if defined(__aarch64__)
constexpr int kLanes = 4, kStrip = 12;  // 24 of 32 registers hold sums.
#else
constexpr int kLanes = 4, kStrip = 6;  // 12 of 16 registers hold sums.
#endif
}  // namespace
}  // namespace kvant

#include "base/gemm_kernel_body.h"

namespace kvant {

const GemmKernel& gemm_kernel_portable() {
  static constexpr GemmKernel kernel{"portable", kPanel, multiply};
  return kernel;
}

}  // namespace kvant
