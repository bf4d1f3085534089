// Why a call of kvant.h was refused: the text of kvant_last_error. Reasons are sentences in static storage,
// so a refusal neither allocates nor builds a string.
#pragma once

#include <cuda_runtime.h>

#include <initializer_list>

#include "kvant/kvant.h"

namespace kvant::cuda {

using Reason = const char*;  // null: no error

// Stores the reason for the calling thread and returns the status.
kvant_status refuse(kvant_status status, Reason reason);

inline kvant_status refuse_argument(Reason reason) {
  return reason == nullptr ? KVANT_OK : refuse(KVANT_INVALID_ARGUMENT, reason);
}

// Returns KVANT_OK, or a refusal with CUDA's own text.
kvant_status status_of(cudaError_t error);

// Returns the status of the kernels that were just launched.
kvant_status launch_status();

struct Condition {
  bool holds;
  Reason otherwise;
};

// Returns the reason of the first condition that does not hold.
inline Reason first_failing(std::initializer_list<Condition> conditions) {
  for (const Condition& condition : conditions)
    if (!condition.holds) return condition.otherwise;
  return nullptr;
}

}  // namespace kvant::cuda
