// Completes many prompts greedily, several at a time. A sequence that has ended makes room for
// the next prompt, so a device always runs steps of many sequences.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "generate/generation.h"
#include "model/engine.h"

namespace kvant {

struct BatchPrompt {
  std::vector<std::int32_t> tokens;  // at least one token
  GenerationOptions options;         // max_tokens must be at least 1
};

struct BatchCompletion {
  std::string text;
  int n_tokens = 0;
  bool was_cut = false;  // the limit of tokens has ended the completion
};

struct BatchOptions {
  int parallel = 1;       // this many sequences run at the same time
  int step_tokens = 512;  // a step reads about this many tokens of prompts; at least kMinPromptStep
  int n_threads = 1;      // this many threads choose tokens from logits
};

// Returns a completion for each prompt. done() is called after each completion. Returns an error if a step
// fails or if memory is too short for options.parallel sequences.
//
// On the CPU, a completion does not depend on the other prompts. On a device, prompts and completions share
// steps, and the size of a step changes how products are rounded.
Result<std::vector<BatchCompletion>> generate_batch(Engine& engine, AttentionBackend& backend,
                                                    PlacedPlan plan, std::span<const BatchPrompt> prompts,
                                                    const BatchOptions& options,
                                                    const std::function<void()>& done);

}  // namespace kvant
