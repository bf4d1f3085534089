#include "device/cuda/kernels/entry.cuh"
#include "device/cuda/pairs/linear.cuh"

namespace kvant::cuda {
namespace {

// WidePlainPair is the pair of plain pages for heads of 512 channels with capped scores. For other head sizes
// the generic kernel caps scores, but a BF16 page of 512 channels would fill the generic kernel's shared
// memory.
struct WidePlainPair : PlainPair {
  static constexpr bool kCaps = true;
  static constexpr int kMaxWarps = max_consumer_warps(512);
};

}  // namespace

std::span<const DecodeKernel> plain_kernels() {
  static const DecodeKernel kernels[] = {
      KVANT_PAIR_64("bf16", "bf16", PlainPair),
      KVANT_PAIR_128("bf16", "bf16", PlainPair),
      KVANT_PAIR_512("bf16", "bf16", WidePlainPair),
  };
  return kernels;
}

}  // namespace kvant::cuda
