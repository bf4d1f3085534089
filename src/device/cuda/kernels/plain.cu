#include "device/cuda/kernels/entry.cuh"
#include "device/cuda/pairs/linear.cuh"

namespace kvant::cuda {
namespace {

// WidePlainPair is the pair of plain pages for heads of 512 channels, which caps scores. The generic kernel
// does so for other head sizes, but a BF16 page of this size would fill its shared memory.
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
