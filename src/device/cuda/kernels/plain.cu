#include "device/cuda/kernels/entry.cuh"
#include "device/cuda/pairs/linear.cuh"

namespace kvant::cuda {
namespace {

// The pair for heads of 512. A BF16 page would fill the shared memory of the generic kernel, which caps
// scores for other head sizes.
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
