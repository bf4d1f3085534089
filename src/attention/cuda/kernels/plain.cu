#include "attention/cuda/kernels/entry.cuh"
#include "attention/cuda/pairs/linear.cuh"

namespace kvant::cuda {

std::span<const DecodeKernel> plain_kernels() {
  static const DecodeKernel kernels[] = {
      KVANT_PAIR_64("bf16", "bf16", PlainPair),
      KVANT_PAIR_128("bf16", "bf16", PlainPair),
  };
  return kernels;
}

}  // namespace kvant::cuda
