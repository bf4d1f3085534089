// What a plan's sequences take of a scheduler's memory.
#pragma once

#include <memory>

#include "recipe/plan.h"
#include "serve/scheduler.h"

namespace kvant {

// Tokens of prompts that a step of the scheduler reads at most.
int largest_step(const SchedulerOptions& options);

// Sets sequence_bytes and step_bytes: a sequence counts with steps of one token, and what a step reads of
// prompts once for all of them. The options' context and tokens of steps are set before.
void set_sequence_bytes(PlacedPlan plan, SchedulerOptions& options);

}  // namespace kvant
