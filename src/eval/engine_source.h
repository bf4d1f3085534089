// Lets kvant's own engine predict tokens for evaluations. llama_reference.h does the same for llama.cpp.
#pragma once

#include <memory>
#include <string>

#include "eval/logit_source.h"
#include "model/engine.h"

namespace kvant {

// Makes a source that runs `plan` on `engine`, with at most step_tokens tokens in a step. `engine` and
// `backend` must outlive the source.
std::unique_ptr<LogitSource> make_engine_source(std::string name, Engine& engine, AttentionBackend& backend,
                                                PlacedPlan plan, int step_tokens);

}  // namespace kvant
