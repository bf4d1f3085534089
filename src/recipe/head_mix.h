// Chooses the KV heads of a layer that get fewer bits, by TurboAttention's rule (section 3.2, equations 11
// and 12). Heads with the lowest calibrated priority are chosen first.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/geometry.h"
#include "base/result.h"
#include "recipe/recipe.h"
#include "transform/constants.h"

namespace kvant {

// Returns the metrics that can rank heads. A head's priority is the calibrated constant "priority/<metric>".
// One number serves K and V together and is stored for side K.
std::span<const char* const> mix_metrics();
std::string head_priority_constant(const std::string& metric);

// Returns for each KV head of `layer` whether the head is among the floor(mix * n_kv_heads) heads of the
// lowest priority. Ties go to the lower index. Returns an error if a priority is missing. A recipe with mix =
// 0 needs no priorities.
Result<std::vector<bool>> mixed_heads(const Recipe& recipe, const Geometry& geometry,
                                      const Constants* constants, int layer);

// Returns the result of side_of(). If the head is mixed and no override names the head, its format is
// replaced by mix_k or mix_v.
SideRecipe mixed_side_of(const Recipe& recipe, Side side, int layer, int kv_head, bool mixed);

}  // namespace kvant
