#include "attention/cuda/kernels/entry.cuh"
#include "attention/cuda/pairs/vector.cuh"

namespace kvant::cuda {

std::span<const DecodeKernel> vector_kernels() {
  static const DecodeKernel kernels[] = {
      KVANT_PAIR_64("vq-d4b8", "vq-d4b8", VectorPair<64>),
      KVANT_PAIR_128("vq-d4b8", "vq-d4b8", VectorPair<128>),
  };
  return kernels;
}

}  // namespace kvant::cuda
