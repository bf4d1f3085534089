#include <algorithm>

#include "device/cuda/common/gpu.h"
#include "device/cuda/common/refusal.h"

namespace kvant::cuda {
namespace {

// The attributes of this kernel tell which code the device runs.
__global__ void probe_kernel() {}

// Finds out how many clusters of each size run at once if a CTA takes `shared_bytes`, the most shared memory
// that a CTA may have. Sizes from the first that the driver refuses are not used.
void count_clusters(int shared_bytes, Gpu* gpu) {
  gpu->clusters = {gpu->multiprocessors};
  if (!gpu->has.clusters) return;
  cudaError_t error =
      cudaFuncSetAttribute(probe_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  for (int n = 2; n <= kMaxClusterCtas && error == cudaSuccess; ++n) {
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(n), 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(n);
    config.blockDim = dim3(32);
    config.dynamicSmemBytes = shared_bytes;
    config.attrs = &cluster;
    config.numAttrs = 1;
    int at_once = 0;
    error = cudaOccupancyMaxActiveClusters(&at_once, probe_kernel, &config);
    if (error == cudaSuccess) gpu->clusters[n - 1] = at_once;
  }
  if (error != cudaSuccess) (void)cudaGetLastError();
}

constexpr int kLeastMajor = 8;  // the least major compute capability

struct Answer {
  cudaError_t error = cudaSuccess;
  Reason refusal = nullptr;
};

// Queries a device, which must be the current one.
Answer ask(int device, Gpu* gpu) {
  int major = 0;
  Answer answer;
  const auto get = [&](cudaDeviceAttr attribute, int* value) {
    if (answer.error == cudaSuccess) answer.error = cudaDeviceGetAttribute(value, attribute, device);
  };
  get(cudaDevAttrComputeCapabilityMajor, &major);
  get(cudaDevAttrMultiProcessorCount, &gpu->multiprocessors);
  get(cudaDevAttrMaxSharedMemoryPerBlockOptin, &gpu->shared_bytes);
  get(cudaDevAttrMaxSharedMemoryPerMultiprocessor, &gpu->multiprocessor_shared_bytes);
  if (answer.error != cudaSuccess) return answer;
  if (major < kLeastMajor) {
    answer.refusal = "the current device is older than compute capability 8.0 (A100, RTX 30)";
    return answer;
  }
  cudaFuncAttributes code{};
  answer.error = cudaFuncGetAttributes(&code, probe_kernel);
  if (answer.error == cudaErrorNoKernelImageForDevice || answer.error == cudaErrorInvalidDeviceFunction) {
    answer = {cudaSuccess,
              "libkvant_cuda has been compiled without code for the current device; "
              "KVANT_CUDA_ARCHITECTURES=80-virtual "
              "compiles it for all of compute capability 8.0 and newer"};
  }
  if (answer.error != cudaSuccess || answer.refusal != nullptr) return answer;
  gpu->has = Architectures::capabilities(code.ptxVersion);
  count_clusters(gpu->shared_bytes, gpu);
#ifdef KVANT_CUDA_SHARED_LIMIT
  gpu->shared_bytes = std::min(gpu->shared_bytes, KVANT_CUDA_SHARED_LIMIT);
  gpu->multiprocessor_shared_bytes =
      std::min(gpu->multiprocessor_shared_bytes, KVANT_CUDA_SHARED_LIMIT + Gpu::kReservedBytes);
#endif
  return answer;
}

// Queries the current device. Each thread caches what it has learnt about one device.
Answer ask(Gpu* gpu) {
  thread_local int known = -1;
  thread_local Gpu facts;
  int device = 0;
  Answer answer;
  answer.error = cudaGetDevice(&device);
  if (answer.error != cudaSuccess) return answer;
  if (device != known) {
    answer = ask(device, &facts);
    known = answer.error == cudaSuccess && answer.refusal == nullptr ? device : -1;
  }
  *gpu = facts;
  return answer;
}

}  // namespace

kvant_status find_gpu(Gpu* gpu) {
  const Answer answer = ask(gpu);
  if (answer.error != cudaSuccess) return status_of(answer.error);
  return answer.refusal == nullptr ? KVANT_OK : refuse(KVANT_UNSUPPORTED, answer.refusal);
}

Gpu gpu_or_h100() {
  Gpu gpu;
  const Answer answer = ask(&gpu);
  if (answer.error != cudaSuccess) (void)cudaGetLastError();
  return answer.error == cudaSuccess && answer.refusal == nullptr ? gpu : kH100;
}

}  // namespace kvant::cuda

extern "C" kvant_status kvant_check_device(void) {
  kvant::cuda::Gpu gpu;
  return kvant::cuda::find_gpu(&gpu);
}
