#include "attention/cuda/seal_registry.h"
#include "attention/cuda/seal_trellis.cuh"

namespace kvant::cuda {
namespace {

template <int Bits, int D>
SealKernel kernel() {
  return {reinterpret_cast<const void*>(&seal_trellis_kernel<Bits, D>), kTrellisThreads,
          static_cast<int>(sizeof(TrellisShared<Bits, D>)), false};
}

template <int D>
SealKernel kernel_of(int bits) {
  constexpr SealKernel (*kKernels[])() = {kernel<1, D>, kernel<2, D>, kernel<3, D>,
                                          kernel<4, D>, kernel<5, D>, kernel<6, D>};
  return kKernels[bits - 1]();
}

}  // namespace

SealKernel trellis_seal_kernel(const PageEncoding& encoding, int head_dim) {
  return head_dim == 64 ? kernel_of<64>(encoding.layout.bits) : kernel_of<128>(encoding.layout.bits);
}

}  // namespace kvant::cuda
