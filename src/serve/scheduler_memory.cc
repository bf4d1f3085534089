#include "serve/scheduler_memory.h"

#include <algorithm>

#include "eval/cache_size.h"
#include "generate/prompt_steps.h"

namespace kvant {

// The last part of a prompt may be up to kMinPromptStep - 1 tokens larger than the step's limit
// (prompt_steps.h).
int largest_step(const SchedulerOptions& options) {
  return std::max(options.prompt_step, options.lone_prompt_step) + kMinPromptStep - 1;
}

void set_sequence_bytes(PlacedPlan plan, SchedulerOptions& options) {
  options.step_bytes = [plan, context = options.context, step = largest_step(options)](int n_seqs) {
    return largest_batch_bytes(plan, context, {n_seqs, step}) -
           largest_batch_bytes(plan, context, {n_seqs, /*step_tokens=*/1});
  };
  options.sequence_bytes = [plan = std::move(plan)](int n_tokens) {
    return largest_cache_bytes(plan, n_tokens, /*step_tokens=*/1);
  };
}

}  // namespace kvant
