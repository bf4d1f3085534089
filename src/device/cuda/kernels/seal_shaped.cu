#include "device/cuda/common/limits.h"
#include "device/cuda/seal/seal_registry.h"
#include "device/cuda/seal/seal_shaped.cuh"

namespace kvant::cuda {
namespace {

template <int Bits, int D>
SealKernel kernel() {
  constexpr int kWarps = kShapedWarps<Bits, D>;
  return {reinterpret_cast<const void*>(&seal_shaped_kernel<Bits, D>), 32 * kWarps,
          static_cast<int>(sizeof(ShapedShared<Bits, D, kWarps>)), 0};
}

template <int D>
SealKernel kernel_of(int bits) {
  constexpr SealKernel (*kKernels[])() = {kernel<1, D>, kernel<2, D>, kernel<3, D>,
                                          kernel<4, D>, kernel<5, D>, kernel<6, D>};
  return kKernels[bits - 1]();
}

}  // namespace

SealKernel shaped_seal_kernel(const PageEncoding& encoding, int head_dim) {
  return with_head_dim(head_dim, [&](auto d) { return kernel_of<d.value>(encoding.layout.bits); });
}

}  // namespace kvant::cuda
