// Chooses one format of the recipe's ladder for each (layer, KV head, side). The choice minimizes the loss
// within a budget of bits. Calibration measures the sensitivity of each place to each format as the
// divergence of the model's predictions.
#pragma once

#include <string>
#include <vector>

#include "base/geometry.h"
#include "base/result.h"
#include "format/format.h"
#include "recipe/recipe.h"
#include "transform/constants.h"

namespace kvant {

// Returns the name of the constant that holds the sensitivity of a (layer, KV head, side). The constant has
// one number for each format of the ladder, which is the expected mean KL divergence in nats.
std::string sensitivity_constant(const Recipe& recipe);

// Returns the format that calibration tries in every place to measure sensitivities: the cheapest format of
// the ladder with at least 2 bits.
const Format& probe_format(const Recipe& recipe, int head_dim);

// Returns whether `constants` hold the sensitivity of any (layer, KV head, side) for which the recipe's own
// overrides leave the format to the budget. `constants` may be null.
bool knows_sensitivities(const Recipe& recipe, const Geometry& geometry, const Constants* constants);

// Returns `recipe` with one more override for every (layer, KV head, side) that its own overrides do not
// name.
//
// Allocation is greedy (Shoham and Gersho 1988). All places begin with the cheapest format. While the mean
// bits stay within the budget, the function then makes the raise that lowers the total sensitivity most per
// bit. Without sensitivities, K and V get the largest format of the ladder within the budget everywhere.
//
// A recipe without a budget is returned unchanged. Returns an error if only some sensitivities are known, or
// if the cheapest formats exceed the budget.
Result<Recipe> allocate_bits(const Recipe& recipe, const Geometry& geometry, const Constants* constants);

}  // namespace kvant
