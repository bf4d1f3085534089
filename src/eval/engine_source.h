// kvant's own engine as a source of predictions.
#pragma once

#include <memory>
#include <string>

#include "eval/logit_source.h"
#include "model/engine.h"

namespace kvant {

// Makes a source that runs `plan` on `engine`, at most step_tokens tokens at a time. engine and backend must
// outlive it.
std::unique_ptr<LogitSource> make_engine_source(std::string name, Engine& engine, AttentionBackend& backend,
                                                PlacedPlan plan, int step_tokens);

}  // namespace kvant
