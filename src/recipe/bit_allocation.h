// Bit allocation: chooses the format of the ladder for each (layer, KV head, side) that minimizes the loss
// within a budget of bits. The sensitivity to each format is calibrated as the divergence of the model's
// predictions.
#pragma once

#include <string>
#include <vector>

#include "base/geometry.h"
#include "base/result.h"
#include "format/format.h"
#include "recipe/recipe.h"
#include "transform/constants.h"

namespace kvant {

// Returns the name of the constant of a (layer, KV head, side) with the cost of each format of the ladder:
// the expected mean KL divergence in nats, [ladder.size()].
std::string sensitivity_constant(const Recipe& recipe);

// Returns the format that calibration tries everywhere to measure that: the ladder's cheapest format of at
// least 2 bits.
const Format& probe_format(const Recipe& recipe, int head_dim);

// Whether calibration has measured the ladder's formats for any (layer, KV head, side) that the recipe's own
// overrides leave to the budget. constants: may be null.
bool knows_sensitivities(const Recipe& recipe, const Geometry& geometry, const Constants* constants);

// Returns `recipe` with an override for every (layer, KV head, side) that none of its own overrides names.
// Formats are chosen by greedy allocation (Shoham and Gersho 1988). All places begin with the cheapest
// format, and the raise that lowers the total sensitivity most per bit comes next, while the mean bits stay
// within the budget. If no sensitivities are known, K and V get the same format everywhere: the ladder's
// largest within the budget. A recipe without a budget is returned unchanged. Fails if only some
// sensitivities are known, or if the cheapest formats exceed the budget.
Result<Recipe> allocate_bits(const Recipe& recipe, const Geometry& geometry, const Constants* constants);

}  // namespace kvant
