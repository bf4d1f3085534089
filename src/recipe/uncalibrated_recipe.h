// The recipe that replaces another one if calibration has not made the optional constants of the latter.
#pragma once

#include "base/geometry.h"
#include "base/result.h"
#include "recipe/recipe.h"
#include "transform/constants.h"

namespace kvant {

// Whether `constants` (may be null) lack optional constants of the recipe: the sensitivities of its ladder's
// formats, or the metric for errors of K.
bool lacks_optional_constants(const Recipe& recipe, const Geometry& geometry, const Constants* constants);

// Returns `recipe` without such needs: its budget buys the same format everywhere, and all errors of K count
// alike. Its name is that of the built-in recipe with the same cache, possibly with the differences, or the
// string form. Errors: see allocate_bits.
Result<Recipe> uncalibrated_recipe(const Recipe& recipe, const Geometry& geometry);

}  // namespace kvant
