#include "device/cuda/kernels/entry.cuh"
#include "device/cuda/pairs/linear_groups.cuh"

namespace kvant::cuda {

std::span<const DecodeKernel> linear_kernels() {
  static const DecodeKernel kernels[] = {
      KVANT_PAIR_64("ch4g128", "tok4g128", LinearPair<4, 4, 64>),
      KVANT_PAIR_128("ch4g128", "tok4g128", LinearPair<4, 4, 128>),
      KVANT_PAIR_64("ch2g128", "tok2g128", LinearPair<2, 2, 64>),
      KVANT_PAIR_128("ch2g128", "tok2g128", LinearPair<2, 2, 128>),
  };
  return kernels;
}

}  // namespace kvant::cuda
