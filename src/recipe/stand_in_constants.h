// Makes constants in place of calibrated constants, for callers that need only shapes and sizes, such as
// predictions of the bytes of a cache.
#pragma once

#include <memory>

#include "base/geometry.h"
#include "recipe/recipe.h"
#include "transform/constants.h"

namespace kvant {

// Returns everything that `recipe` needs on a model with the geometry, in the right sizes and with harmless
// values. Transforms are identities, and codebooks and adapters have one value throughout. Attention with
// stand-in constants would be meaningless. Overrides must lie within the geometry.
std::shared_ptr<const Constants> stand_in_constants(const Recipe& recipe, const Geometry& geometry);

}  // namespace kvant
