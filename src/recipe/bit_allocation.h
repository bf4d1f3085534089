// Bit allocation: which format of the ladder each (layer, KV head, side) gets, so that a budget of bits does
// the least loss. The sensitivity to each format is calibrated: the divergence of the model's predictions.
#pragma once

#include <string>
#include <vector>

#include "base/geometry.h"
#include "base/result.h"
#include "format/format.h"
#include "recipe/recipe.h"
#include "transform/constants.h"

namespace kvant {

// The constant of a (layer, KV head, side) that holds what each format of the ladder costs there: expected
// mean KL divergence in nats, [ladder.size()].
std::string sensitivity_constant(const Recipe& recipe);

// The format that calibration tries out everywhere to find that: the ladder's cheapest of at least 2 bits.
const Format& probe_format(const Recipe& recipe, int head_dim);

// Whether calibration has weighed the ladder's formats for any (layer, KV head, side) that the recipe's own
// overrides leave to the budget. constants: may be null.
bool knows_sensitivities(const Recipe& recipe, const Geometry& geometry, const Constants* constants);

// `recipe` with an override for every (layer, KV head, side) that none of its own overrides names: the
// ladder's format by greedy allocation (Shoham and Gersho 1988): all begin with the cheapest one, and what
// lowers the total sensitivity most for each bit is raised next, as long as the mean over all of them stays
// within the budget. Where no sensitivities are known at all, K and V get the same format everywhere: the
// ladder's one of the most bits that the budget allows. The recipe itself when it has no budget. Fails where
// some sensitivities are known and others are missing, or when the cheapest formats are more than the budget.
Result<Recipe> allocate_bits(const Recipe& recipe, const Geometry& geometry, const Constants* constants);

}  // namespace kvant
