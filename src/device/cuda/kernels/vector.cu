#include "device/cuda/kernels/entry.cuh"
#include "device/cuda/pairs/vector_strips.cuh"

namespace kvant::cuda {

std::span<const DecodeKernel> vector_kernels() {
  static const DecodeKernel kernels[] = {
      KVANT_PAIR_64("vq-d2b8", "vq-d2b8", VectorPair<2, 8, 2, 8, 64>),
      KVANT_PAIR_128("vq-d2b8", "vq-d2b8", VectorPair<2, 8, 2, 8, 128>),
      KVANT_PAIR_64("vq-d4b8", "vq-d4b8", VectorPair<4, 8, 4, 8, 64>),
      KVANT_PAIR_128("vq-d4b8", "vq-d4b8", VectorPair<4, 8, 4, 8, 128>),
      KVANT_PAIR_64("nvq-d4b8", "nvq-d4b8", VectorPair<4, 8, 4, 8, 64, Gains::of_tokens>),
      KVANT_PAIR_128("nvq-d4b8", "nvq-d4b8", VectorPair<4, 8, 4, 8, 128, Gains::of_tokens>),
      KVANT_PAIR_64("nvq-d4b10", "nvq-d4b10", VectorPair<4, 10, 4, 10, 64, Gains::of_tokens>),
      KVANT_PAIR_128("nvq-d4b10", "nvq-d4b10", VectorPair<4, 10, 4, 10, 128, Gains::of_tokens>),
      KVANT_PAIR_64("vq-d4b12", "vq-d4b12", VectorPair<4, 12, 4, 12, 64>),
      KVANT_PAIR_128("vq-d4b12", "vq-d4b12", VectorPair<4, 12, 4, 12, 128>),
  };
  return kernels;
}

}  // namespace kvant::cuda
