// Launches of the kernels of prompt attention.
#pragma once

#include <cuda_runtime.h>

namespace kvant::cuda {

template <class Kernel>
cudaError_t allow_shared(Kernel* kernel, int bytes) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

// Launches a kernel that begins while the one before it ends, and itself waits for it.
template <class... Parameters>
cudaError_t launch_overlapped(void (*kernel)(Parameters...), dim3 grid, int threads, int shared_bytes,
                              cudaStream_t stream, const Parameters&... parameters) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, parameters...);
}

}  // namespace kvant::cuda
