#include "device/cuda/common/limits.h"
#include "device/cuda/seal/seal_pairs.cuh"
#include "device/cuda/seal/seal_registry.h"
#include "device/cuda/seal/seal_trellis.cuh"

namespace kvant::cuda {
namespace {

template <int D, bool IsSplit>
SealKernel pairs_kernel() {
  return {reinterpret_cast<const void*>(&seal_pairs_kernel<D, IsSplit>), kPairThreads,
          static_cast<int>(sizeof(PairsShared<D, IsSplit>)), 0};
}

template <int Bits, int D>
SealKernel kernel(const Capabilities& has, bool fills_gpu, bool joins) {
  const auto bytes = has.large_shared_memory ? sizeof(TrellisShared<Bits, D, true>)
                                             : sizeof(TrellisShared<Bits, D, kHasFewChoices<Bits, D>>);
  SealKernel kernel{reinterpret_cast<const void*>(&seal_trellis_kernel<Bits, D>), kTrellisThreads,
                    static_cast<int>(bytes), 0};
  if (joins) {
    if constexpr (kHasJoiningKernel<Bits, D>)
      kernel.function = reinterpret_cast<const void*>(&seal_trellis_kernel<Bits, D, kJoiningCtas>);
    return kernel;
  }
  if constexpr (Bits == kPairedBits) {
    // Split choices let one more CTA run concurrently, but each CTA takes longer. With heads of 64 channels
    // the loss is larger than the gain.
    if constexpr (D > 64)
      if (has.packed_maxima && fills_gpu) return pairs_kernel<D, true>();
    if (has.packed_maxima) return pairs_kernel<D, false>();
  }
  return kernel;
}

template <int D>
SealKernel kernel_of(int bits, const Capabilities& has, bool fills_gpu, bool joins) {
  constexpr SealKernel (*kKernels[])(const Capabilities&, bool, bool) = {
      kernel<1, D>, kernel<2, D>, kernel<3, D>, kernel<4, D>, kernel<5, D>, kernel<6, D>};
  return kKernels[bits - 1](has, fills_gpu, joins);
}

}  // namespace

SealKernel trellis_seal_kernel(const PageEncoding& encoding, int head_dim, const Gpu& gpu, bool fills_gpu,
                               bool joins) {
  return with_head_dim(
      head_dim, [&](auto d) { return kernel_of<d.value>(encoding.layout.bits, gpu.has, fills_gpu, joins); });
}

}  // namespace kvant::cuda
