#include "device/cuda/common/limits.h"
#include "device/cuda/seal/seal_registry.h"
#include "device/cuda/seal/seal_shaped.cuh"

namespace kvant::cuda {
namespace {

template <int Bits, int D, int Warps>
SealKernel kernel_with() {
  return {reinterpret_cast<const void*>(&seal_shaped_kernel<Bits, D, Warps>), 32 * Warps,
          static_cast<int>(sizeof(ShapedShared<Bits, D, Warps>)), 0};
}

// The search for the codes of a page takes several rounds of the CTA's tokens, so two CTAs need half the
// time.
constexpr int kMostSharingCtas = 2;

template <int Bits, int D>
SealKernel kernel(const Gpu& gpu, bool fills_gpu) {
  if constexpr (D <= 128) {
    SealKernel more = kernel_with<Bits, D, kMoreShapedWarps>();
    more.most_sharing_ctas = gpu.has.clusters ? kMostSharingCtas : 1;
    if (!fills_gpu && more.shared_bytes <= gpu.shared_bytes) return more;
  }
  return kernel_with<Bits, D, kShapedWarps<Bits, D>>();
}

template <int D>
SealKernel kernel_of(int bits, const Gpu& gpu, bool fills_gpu) {
  constexpr SealKernel (*kKernels[])(const Gpu&, bool) = {kernel<1, D>, kernel<2, D>, kernel<3, D>,
                                                          kernel<4, D>, kernel<5, D>, kernel<6, D>};
  return kKernels[bits - 1](gpu, fills_gpu);
}

}  // namespace

SealKernel shaped_seal_kernel(const PageEncoding& encoding, int head_dim, const Gpu& gpu, bool fills_gpu) {
  return with_head_dim(head_dim,
                       [&](auto d) { return kernel_of<d.value>(encoding.layout.bits, gpu, fills_gpu); });
}

}  // namespace kvant::cuda
