// Which experts a row goes through, and with what weights.
#pragma once

#include <cstdint>
#include <span>

#include "model/hparams.h"

namespace kvant {

// From the router's logits [rules.n], which are overwritten: ids and weights [rules.n_used], the best expert
// first. choice_bias [rules.n] joins what experts are chosen by, but not their weights; empty: none.
void choose_experts(const Experts& rules, std::span<float> logits, std::span<const float> choice_bias,
                    std::span<std::int32_t> ids, std::span<float> weights);

}  // namespace kvant
