// Chooses the experts that a row uses, and the experts' weights. Architectures differ in the gating function,
// in groups of experts and in biases; struct Experts describes the rules.
#pragma once

#include <cstdint>
#include <span>

#include "model/hparams.h"

namespace kvant {

// Reads the router's logits [rules.n], which are overwritten. Writes ids and weights [rules.n_used], the best
// expert first. choice_bias [rules.n] changes which experts are chosen, but not their weights; choice_bias
// may be empty.
void choose_experts(const Experts& rules, std::span<float> logits, std::span<const float> choice_bias,
                    std::span<std::int32_t> ids, std::span<float> weights);

}  // namespace kvant
