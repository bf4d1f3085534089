#include "attention/cuda/head_dim.h"
#include "attention/cuda/seal_registry.h"
#include "attention/cuda/seal_vectors.cuh"

namespace kvant::cuda {
namespace {

template <int Channels, int D>
SealKernel kernel(const CodeLayout& layout) {
  constexpr int kMaxShared = 228 * 1024;  // of a multiprocessor, with 1 KB for each CTA
  const int bytes = VectorShared<D>::template bytes<Channels>(1 << layout.bits);
  const int ctas = 4 * (bytes + 1024) <= kMaxShared ? 4 : 2 * (bytes + 1024) <= kMaxShared ? 2 : 1;
  return {reinterpret_cast<const void*>(&seal_vectors_kernel<Channels, D>), kVectorThreads, bytes, ctas};
}

template <int D>
SealKernel kernel_of(const CodeLayout& layout) {
  return layout.channels == 2   ? kernel<2, D>(layout)
         : layout.channels == 4 ? kernel<4, D>(layout)
                                : kernel<8, D>(layout);
}

}  // namespace

SealKernel vector_seal_kernel(const PageEncoding& encoding, int head_dim) {
  return with_head_dim(head_dim, [&](auto d) { return kernel_of<d.value>(encoding.layout); });
}

}  // namespace kvant::cuda
