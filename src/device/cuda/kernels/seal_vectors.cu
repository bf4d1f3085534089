#include "device/cuda/common/limits.h"
#include "device/cuda/seal/seal_registry.h"
#include "device/cuda/seal/seal_vectors.cuh"

namespace kvant::cuda {
namespace {

template <int Channels, int D>
SealKernel kernel(const CodeLayout& layout, const Gpu& gpu) {
  const int n = 1 << layout.bits;
  using Large = VectorShared<D, has_large_shared<D>(true)>;
  const int bytes = gpu.has.large_shared_memory ? Large::template bytes<Channels>(n)
                                                : VectorShared<D, false>::template bytes<Channels>(n);
  const int of_multiprocessor = gpu.multiprocessor_shared_bytes / (bytes + Gpu::kReservedBytes);
  const int ctas = of_multiprocessor >= 4 ? 4 : of_multiprocessor >= 2 ? 2 : 1;
  return {reinterpret_cast<const void*>(&seal_vectors_kernel<Channels, D>), kVectorThreads, bytes, ctas};
}

template <int D>
SealKernel kernel_of(const CodeLayout& layout, const Gpu& gpu) {
  return layout.channels == 2   ? kernel<2, D>(layout, gpu)
         : layout.channels == 4 ? kernel<4, D>(layout, gpu)
                                : kernel<8, D>(layout, gpu);
}

}  // namespace

SealKernel vector_seal_kernel(const PageEncoding& encoding, int head_dim, const Gpu& gpu) {
  return with_head_dim(head_dim, [&](auto d) { return kernel_of<d.value>(encoding.layout, gpu); });
}

}  // namespace kvant::cuda
