// Head mix: which KV heads of a layer get fewer bits (TurboAttention, section 3.2, equations 11 and 12).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/geometry.h"
#include "base/result.h"
#include "recipe/recipe.h"
#include "transform/constants.h"

namespace kvant {

// The metrics that rank heads. Each head's priority is the calibrated constant "priority/<metric>", one
// number for K and V together, kept with side K.
std::span<const char* const> mix_metrics();
std::string head_priority_constant(const std::string& metric);

// For each KV head of `layer`, whether it is one of the floor(mix * n_kv_heads) heads of the lowest priority
// (of equals, those that come first). Fails where priorities are missing; mix = 0 needs none.
Result<std::vector<bool>> mixed_heads(const Recipe& recipe, const Geometry& geometry,
                                      const Constants* constants, int layer);

// What side_of gives, with the format mix_k or mix_v where the head is mixed, unless an override names it.
SideRecipe mixed_side_of(const Recipe& recipe, Side side, int layer, int kv_head, bool mixed);

}  // namespace kvant
