#include "attention/cuda/kernels/entry.cuh"
#include "attention/cuda/pairs/linear_sixteen.cuh"

namespace kvant::cuda {

std::span<const DecodeKernel> linear_kernels_for_several() {
  static const DecodeKernel kernels[] = {
      KVANT_PAIR_64("ch4g128", "tok4g128", LinearPairOfSixteen<4, 4, 64>),
      KVANT_PAIR_128("ch4g128", "tok4g128", LinearPairOfSixteen<4, 4, 128>),
      KVANT_PAIR_64("ch4g128", "tok2g128", LinearPairOfSixteen<4, 2, 64>),
      KVANT_PAIR_128("ch4g128", "tok2g128", LinearPairOfSixteen<4, 2, 128>),
      KVANT_PAIR_64("ch2g128", "tok2g128", LinearPairOfSixteen<2, 2, 64>),
      KVANT_PAIR_128("ch2g128", "tok2g128", LinearPairOfSixteen<2, 2, 128>),
  };
  return kernels;
}

}  // namespace kvant::cuda
