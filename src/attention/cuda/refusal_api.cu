#include "attention/cuda/refusal.h"

namespace kvant::cuda {
namespace {

thread_local Reason last_reason = "";

// wgmma and the bulk copies belong to compute capability 9.0 alone: later GPUs don't have them.
constexpr int kComputeMajor = 9;
constexpr int kComputeMinor = 0;

}  // namespace

kvant_status refuse(kvant_status status, Reason reason) {
  last_reason = reason;
  return status;
}

kvant_status status_of(cudaError_t error) {
  if (error == cudaSuccess) return KVANT_OK;
  (void)cudaGetLastError();
  return refuse(KVANT_CUDA_ERROR, cudaGetErrorString(error));
}

// Forgets the error: the next call's launches are to be judged by themselves.
kvant_status launch_status() {
  return status_of(cudaGetLastError());
}

kvant_status check_device(int* multiprocessors) {
  int device = 0;
  int major = 0;
  int minor = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  if (error == cudaSuccess && multiprocessors != nullptr)
    error = cudaDeviceGetAttribute(multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return status_of(error);
  if (major != kComputeMajor || minor != kComputeMinor)
    return refuse(KVANT_UNSUPPORTED,
                  "the current device is not of compute capability 9.0 (H100, H200, GH200)");
  return KVANT_OK;
}

}  // namespace kvant::cuda

using namespace kvant::cuda;

extern "C" {

const char* kvant_status_text(kvant_status status) {
  switch (status) {
    case KVANT_OK:
      return "No error.";
    case KVANT_INVALID_ARGUMENT:
      return "A size, stride, alignment or pointer is out of range; kvant.h says what is allowed.";
    case KVANT_UNSUPPORTED:
      return "There is no kernel for these formats, this head size or this device.";
    case KVANT_WORKSPACE_TOO_SMALL:
      return "The workspace is smaller than the function for its size says.";
    case KVANT_CUDA_ERROR:
      return "A CUDA call failed.";
  }
  return "Not a status.";
}

const char* kvant_last_error(void) {
  return last_reason;
}

int kvant_version(void) {
  return KVANT_VERSION;
}

kvant_status kvant_check_device(void) {
  return check_device(nullptr);
}

}  // extern "C"
