// Head mix: chooses the KV heads of a layer that get fewer bits (TurboAttention, section 3.2, equations 11
// and 12).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/geometry.h"
#include "base/result.h"
#include "recipe/recipe.h"
#include "transform/constants.h"

namespace kvant {

// Returns the metrics that rank heads. Each head's priority is the calibrated constant "priority/<metric>",
// one number for K and V together, stored for side K.
std::span<const char* const> mix_metrics();
std::string head_priority_constant(const std::string& metric);

// Returns, for each KV head of `layer`, whether it is among the floor(mix * n_kv_heads) heads of the lowest
// priority; ties go to the first. Fails if priorities are missing; mix = 0 needs none.
Result<std::vector<bool>> mixed_heads(const Recipe& recipe, const Geometry& geometry,
                                      const Constants* constants, int layer);

// Returns the result of side_of, with the format mix_k or mix_v if the head is mixed and no override names
// it.
SideRecipe mixed_side_of(const Recipe& recipe, Side side, int layer, int kv_head, bool mixed);

}  // namespace kvant
