// Launches kernels of prefill attention. A kernel may use more shared memory than the default, and may begin
// while the previous kernel ends.
#pragma once

#include <cuda_runtime.h>

#include "device/cuda/prompt/launch.h"

namespace kvant::cuda {

// Allows a kernel to use this many bytes of dynamic shared memory.
template <class Kernel>
cudaError_t allow_shared(Kernel* kernel, int bytes) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

// Launches a kernel that may begin while the previous kernel ends, if the device supports overlap. The
// launched kernel itself waits for its predecessor.
template <class... Parameters>
cudaError_t launch_overlapped(void (*kernel)(Parameters...), dim3 grid, int threads, int shared_bytes,
                              const PromptLaunch& launch, const Parameters&... parameters) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = launch.stream;
  config.attrs = &overlap;
  config.numAttrs = launch.gpu.overlap_attributes();
  return cudaLaunchKernelEx(&config, kernel, parameters...);
}

}  // namespace kvant::cuda
