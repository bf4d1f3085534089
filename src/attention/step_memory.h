// Turns a failed allocation in one thread of a team into an error of the step.
#pragma once

#include <new>

#include "cache/cache.h"

namespace kvant {

// Runs `work` unless the step has failed, and fails the step if memory is short. So the thread goes on to the
// barrier where the other threads wait, and no exception reaches the library that owns the thread.
template <class Work>
void run_within_memory(Step& step, const Work& work) {
  if (step.failed()) return;
  try {
    work();
  } catch (const std::bad_alloc&) {
    step.fail_out_of_memory();
  }
}

}  // namespace kvant
