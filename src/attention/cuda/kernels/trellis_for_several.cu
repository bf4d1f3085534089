#include "attention/cuda/kernels/trellis_entries.cuh"

namespace kvant::cuda {

std::span<const DecodeKernel> trellis_kernels_for_several() {
  static const auto kernels = trellis_entries<4, 64, 128>();
  return kernels;
}

}  // namespace kvant::cuda
