#include "device/cuda/kernels/entry.cuh"
#include "device/cuda/pairs/vector_strips.cuh"

namespace kvant::cuda {

std::span<const DecodeKernel> long_vector_kernels() {
  static const DecodeKernel kernels[] = {
      KVANT_PAIR_64("vq-d4b10", "vq-d8b12", VectorPair<4, 10, 8, 12, 64>),
      KVANT_PAIR_128("vq-d4b10", "vq-d8b12", VectorPair<4, 10, 8, 12, 128>),
      KVANT_PAIR_64("vq-d8b12", "vq-d8b12", VectorPair<8, 12, 8, 12, 64>),
      KVANT_PAIR_128("vq-d8b12", "vq-d8b12", VectorPair<8, 12, 8, 12, 128>),
      KVANT_PAIR_64("vq-d8b12", "vq-d8b8", VectorPair<8, 12, 8, 8, 64>),
      KVANT_PAIR_128("vq-d8b12", "vq-d8b8", VectorPair<8, 12, 8, 8, 128>),
  };
  return kernels;
}

}  // namespace kvant::cuda
