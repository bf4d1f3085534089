// Computes how much of a scheduler's memory the sequences of a plan take. Admission of requests relies on
// these figures, because an admitted request must never run out of memory.
#pragma once

#include <memory>

#include "recipe/plan.h"
#include "serve/scheduler.h"

namespace kvant {

// Returns the most prompt tokens that a step of the scheduler reads.
int largest_step(const SchedulerOptions& options);

// Sets sequence_bytes and step_bytes. A sequence's bytes are computed for growth by one token at a time. The
// larger tail of a prompt step counts once for all sequences. The options' context and step sizes must be set
// before.
void set_sequence_bytes(PlacedPlan plan, SchedulerOptions& options);

}  // namespace kvant
