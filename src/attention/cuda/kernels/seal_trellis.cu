#include "attention/cuda/head_dim.h"
#include "attention/cuda/seal_registry.h"
#include "attention/cuda/seal_trellis.cuh"

namespace kvant::cuda {
namespace {

template <int Bits, int D>
SealKernel kernel() {
  return {reinterpret_cast<const void*>(&seal_trellis_kernel<Bits, D>), kTrellisThreads,
          static_cast<int>(sizeof(TrellisShared<Bits, D>)), 0};
}

template <int D>
SealKernel kernel_of(int bits) {
  constexpr SealKernel (*kKernels[])() = {kernel<1, D>, kernel<2, D>, kernel<3, D>,
                                          kernel<4, D>, kernel<5, D>, kernel<6, D>};
  return kKernels[bits - 1]();
}

}  // namespace

SealKernel trellis_seal_kernel(const PageEncoding& encoding, int head_dim) {
  return with_head_dim(head_dim, [&](auto d) { return kernel_of<d.value>(encoding.layout.bits); });
}

}  // namespace kvant::cuda
