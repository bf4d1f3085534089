// Registers the pairs for heads of 256 channels that have kernels of their own.
#include "device/cuda/kernels/entry.cuh"
#include "device/cuda/pairs/linear_halves.cuh"
#include "device/cuda/pairs/progressive_halves.cuh"

namespace kvant::cuda {

std::span<const DecodeKernel> wide_head_kernels() {
  static const DecodeKernel kernels[] = {
      KVANT_PAIR_256("ch4g128", "tok4g128", LinearHalves),
      KVANT_PAIR_256("prog4", "prog4", ProgressiveHalves),
  };
  return kernels;
}

}  // namespace kvant::cuda
