#include "device/caller_faults.h"
#include "device/cuda/common/refusal.h"

namespace kvant::cuda {
namespace {

thread_local Reason last_reason = "";

// Returns CUDA's own text, except where it omits the most frequent cause.
Reason text_of(cudaError_t error) {
  return error == cudaErrorInsufficientDriver
             ? "there is no NVIDIA driver, or it is older than the CUDA runtime that the library has"
             : cudaGetErrorString(error);
}

}  // namespace

kvant_status refuse(kvant_status status, Reason reason) {
  last_reason = reason;
  return status;
}

kvant_status status_of(cudaError_t error) {
  if (error == cudaSuccess) return KVANT_OK;
  (void)cudaGetLastError();
  return refuse(KVANT_DEVICE_ERROR, text_of(error));
}

// Clears the error, because the next call's launches must be judged separately.
kvant_status launch_status() {
  return status_of(cudaGetLastError());
}

}  // namespace kvant::cuda

using namespace kvant::cuda;

extern "C" {

const char* kvant_status_text(kvant_status status) {
  return kvant::device::text_of_status(status);
}

const char* kvant_last_error(void) {
  return last_reason;
}

int kvant_version(void) {
  return KVANT_VERSION;
}

kvant_status kvant_check_version(int version) {
  const Reason reason = kvant::device::fault_of_version(version);
  return reason == nullptr ? KVANT_OK : refuse(KVANT_UNSUPPORTED, reason);
}

}  // extern "C"
