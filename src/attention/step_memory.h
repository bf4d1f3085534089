// Memory that is short in one thread of a team, inside a step.
#pragma once

#include <new>

#include "cache/cache.h"

namespace kvant {

// Runs `work` unless the step has failed; fails it where memory is short. So a thread goes on to the barrier
// at which the others wait, and no exception reaches the library whose thread it is.
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
