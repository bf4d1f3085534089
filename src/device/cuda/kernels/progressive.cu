#include "device/cuda/kernels/entry.cuh"
#include "device/cuda/pairs/progressive_strips.cuh"

namespace kvant::cuda {

std::span<const DecodeKernel> progressive_kernels() {
  static const DecodeKernel kernels[] = {
      KVANT_PAIR_64("prog4", "prog4", ProgressivePair<4, 64>),
      KVANT_PAIR_128("prog4", "prog4", ProgressivePair<4, 128>),
      KVANT_PAIR_64("prog3", "prog3", ProgressivePair<3, 64>),
      KVANT_PAIR_128("prog3", "prog3", ProgressivePair<3, 128>),
      KVANT_PAIR_64("prog5", "prog5", ProgressivePair<5, 64>),
      KVANT_PAIR_128("prog5", "prog5", ProgressivePair<5, 128>),
      KVANT_PAIR_64("prog2", "prog2", ProgressivePair<2, 64>),
      KVANT_PAIR_128("prog2", "prog2", ProgressivePair<2, 128>),
  };
  return kernels;
}

}  // namespace kvant::cuda
