// Refuses calls of kvant.h. A refusal stores its reason, which kvant_last_error() returns, and returns a
// status.
#pragma once

#include <cuda_runtime.h>

#include "device/caller_structs.h"
#include "kvant/kvant.h"

namespace kvant::cuda {

using device::first_failing;
using device::Reason;

// Stores `reason` for the calling thread and returns `status`.
kvant_status refuse(kvant_status status, Reason reason);

inline kvant_status refuse_argument(Reason reason) {
  return reason == nullptr ? KVANT_OK : refuse(KVANT_INVALID_ARGUMENT, reason);
}

// Returns KVANT_OK, or a refusal with CUDA's description of the error.
kvant_status status_of(cudaError_t error);

// Returns the status of the kernels that were just launched.
kvant_status launch_status();

}  // namespace kvant::cuda
