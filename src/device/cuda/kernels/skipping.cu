#include "device/cuda/pairs/skipping.cuh"

#include "device/cuda/kernels/entry.cuh"
#include "device/cuda/pairs/linear.cuh"

namespace kvant::cuda {

// Skipping pays where memory bandwidth is the bottleneck. Other pairs lose more than they gain
// (docs/lab/decode.md).
std::span<const DecodeKernel> skipping_kernels() {
  static const DecodeKernel kernels[] = {decode_entry<SkippingPair<LinearPair<4, 4, 128>, 128>, 128>(
      "cuda/sm90/ch4g128+tok4g128 skipping values", "ch4g128", "tok4g128")};
  return kernels;
}

}  // namespace kvant::cuda
