// Why a call of kvant.h did not do what was asked: what kvant_last_error says. Reasons are sentences in
// static storage, so that a refusal neither allocates nor builds a string.
#pragma once

#include <cuda_runtime.h>

#include <initializer_list>

#include "kvant/kvant.h"

namespace kvant::cuda {

using Reason = const char*;  // null: nothing is wrong

// Keeps the reason for the calling thread and returns the status.
kvant_status refuse(kvant_status status, Reason reason);

inline kvant_status refuse_argument(Reason reason) {
  return reason == nullptr ? KVANT_OK : refuse(KVANT_INVALID_ARGUMENT, reason);
}

// KVANT_OK, or a refusal with CUDA's own text.
kvant_status status_of(cudaError_t error);

// Of the kernels launched just now.
kvant_status launch_status();

struct Condition {
  bool holds;
  Reason otherwise;
};

// The reason of the first condition that does not hold.
inline Reason first_failing(std::initializer_list<Condition> conditions) {
  for (const Condition& condition : conditions)
    if (!condition.holds) return condition.otherwise;
  return nullptr;
}

}  // namespace kvant::cuda
