#include "device/cuda/kernels/trellis_entries.cuh"

namespace kvant::cuda {

std::span<const DecodeKernel> wide_head_wide_trellis_kernels() {
  static const auto kernels = trellis_entries<2, 256>();
  return kernels;
}

}  // namespace kvant::cuda
