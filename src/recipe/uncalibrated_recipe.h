// The recipe that serves where calibration has not made the constants that a recipe works without.
#pragma once

#include "base/geometry.h"
#include "base/result.h"
#include "recipe/recipe.h"
#include "transform/constants.h"

namespace kvant {

// Whether `constants` (may be null) lack something that the recipe uses and works without: what the formats
// of its ladder cost, or what errors of K do to scores.
bool lacks_optional_constants(const Recipe& recipe, const Geometry& geometry, const Constants* constants);

// `recipe` without such needs: its budget buys the same format everywhere, and all errors of K count alike.
// The name is that of the built-in recipe that is the same cache, also with what differs, or the string form.
// Errors: see allocate_bits.
Result<Recipe> uncalibrated_recipe(const Recipe& recipe, const Geometry& geometry);

}  // namespace kvant
