#include "device/cuda/kernels/entry.cuh"
#include "device/cuda/pairs/linear.cuh"

namespace kvant::cuda {
namespace {

// CappedPlainPair is PlainPair for heads of 256 or 512 channels, and can also cap scores. For smaller heads
// the generic kernel caps scores. BF16 pages of wide heads would fill the generic kernel's shared memory, so
// few copies would be in flight.
template <int D>
struct CappedPlainPair : PlainPair {
  static constexpr bool kCaps = true;
  static constexpr int kMaxWarps = max_consumer_warps(D);
};

}  // namespace

std::span<const DecodeKernel> plain_kernels() {
  static const DecodeKernel kernels[] = {
      KVANT_PAIR_64("bf16", "bf16", PlainPair),
      KVANT_PAIR_128("bf16", "bf16", PlainPair),
      KVANT_PAIR_256("bf16", "bf16", CappedPlainPair<256>),
      KVANT_PAIR_512("bf16", "bf16", CappedPlainPair<512>),
  };
  return kernels;
}

}  // namespace kvant::cuda
