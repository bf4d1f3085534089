#include "device/cuda/common/limits.h"
#include "device/cuda/seal/seal_kernel.cuh"
#include "device/cuda/seal/seal_registry.h"

namespace kvant::cuda {
namespace {

template <int D>
SealKernel kernel() {
  return {reinterpret_cast<const void*>(&seal_kernel<D>), kSealThreads,
          static_cast<int>(sizeof(SealShared<D>)), 0};
}

}  // namespace

SealKernel scalar_seal_kernel(const PageEncoding&, int head_dim) {
  return with_head_dim(head_dim, [](auto d) { return kernel<d.value>(); });
}

}  // namespace kvant::cuda
