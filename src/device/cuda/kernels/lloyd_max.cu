#include "device/cuda/kernels/entry.cuh"
#include "device/cuda/pairs/lloyd_max_strips.cuh"

namespace kvant::cuda {

std::span<const DecodeKernel> lloyd_max_kernels() {
  static const DecodeKernel kernels[] = {
      KVANT_PAIR_64("lm2", "lm2", LloydMaxPair<2, 64>), KVANT_PAIR_128("lm2", "lm2", LloydMaxPair<2, 128>),
      KVANT_PAIR_64("lm3", "lm3", LloydMaxPair<3, 64>), KVANT_PAIR_128("lm3", "lm3", LloydMaxPair<3, 128>),
      KVANT_PAIR_64("lm4", "lm4", LloydMaxPair<4, 64>), KVANT_PAIR_128("lm4", "lm4", LloydMaxPair<4, 128>),
  };
  return kernels;
}

}  // namespace kvant::cuda
