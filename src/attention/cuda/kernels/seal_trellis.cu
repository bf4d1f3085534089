#include "attention/cuda/api/head_dim.h"
#include "attention/cuda/seal/seal_pairs.cuh"
#include "attention/cuda/seal/seal_registry.h"
#include "attention/cuda/seal/seal_trellis.cuh"

namespace kvant::cuda {
namespace {

template <int D, bool IsSplit>
SealKernel pairs_kernel() {
  return {reinterpret_cast<const void*>(&seal_pairs_kernel<D, IsSplit>), kPairThreads,
          static_cast<int>(sizeof(PairsShared<D, IsSplit>)), 0};
}

template <int Bits, int D, bool IsSplit = false>
SealKernel kernel_of_tokens(bool is_hopper) {
  const auto bytes = is_hopper ? sizeof(TrellisShared<Bits, D, kChoicePlace<Bits, D, IsSplit, true>>)
                               : sizeof(TrellisShared<Bits, D, kChoicePlace<Bits, D, IsSplit, false>>);
  return {reinterpret_cast<const void*>(&seal_trellis_kernel<Bits, D, IsSplit>), kTrellisThreads,
          static_cast<int>(bytes), 0};
}

// Split choices let more CTAs run at once, each of which takes longer.
template <int Bits, int D>
SealKernel kernel(bool is_hopper, bool fills_gpu) {
  if constexpr (Bits == kPairedBits) {
    if (is_hopper) return fills_gpu ? pairs_kernel<D, true>() : pairs_kernel<D, false>();
  }
  if constexpr (kCanSplit<Bits, D>) {
    if (is_hopper && fills_gpu) return kernel_of_tokens<Bits, D, true>(is_hopper);
  }
  return kernel_of_tokens<Bits, D>(is_hopper);
}

template <int D>
SealKernel kernel_of(int bits, bool is_hopper, bool fills_gpu) {
  constexpr SealKernel (*kKernels[])(bool, bool) = {kernel<1, D>, kernel<2, D>, kernel<3, D>,
                                                    kernel<4, D>, kernel<5, D>, kernel<6, D>};
  return kKernels[bits - 1](is_hopper, fills_gpu);
}

}  // namespace

SealKernel trellis_seal_kernel(const PageEncoding& encoding, int head_dim, const Gpu& gpu, bool fills_gpu) {
  return with_head_dim(
      head_dim, [&](auto d) { return kernel_of<d.value>(encoding.layout.bits, gpu.is_hopper, fills_gpu); });
}

}  // namespace kvant::cuda
