// Measures how fast a model reads. Long work says from this measurement how long it will take.
#pragma once

#include "base/result.h"
#include "model/engine.h"

namespace kvant {

struct ReadingSpeed {
  double prompt = 0, decode = 0;  // seconds for each token of a prompt, and for each decoded token
};

// Reads a prompt of 64 tokens and then decodes n_decoded tokens, without logits. The time of a decoded token
// is 0 if n_decoded is 0. Returns the engine's errors.
Result<ReadingSpeed> measure_reading(Engine& engine, AttentionBackend& backend, const PlacedPlan& plan,
                                     int n_decoded);

}  // namespace kvant
