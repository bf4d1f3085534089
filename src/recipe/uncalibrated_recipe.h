// Finds the recipe that replaces another recipe on a model for which calibration has not made the optional
// constants. The replacement has a name of its own, so no name stands for two caches.
#pragma once

#include "base/geometry.h"
#include "base/result.h"
#include "recipe/recipe.h"
#include "transform/constants.h"

namespace kvant {

// Returns whether `constants` (may be null) lack optional constants of the recipe: the sensitivities to the
// ladder's formats, or the metric for errors of K.
bool lacks_optional_constants(const Recipe& recipe, const Geometry& geometry, const Constants* constants);

// Returns `recipe` without the optional needs: the budget buys one format everywhere, and all errors of K
// count alike. The result's name is that of the built-in recipe with an equal cache, such a name with the
// differing items, or the string form. Returns an error if allocate_bits() does.
Result<Recipe> uncalibrated_recipe(const Recipe& recipe, const Geometry& geometry);

}  // namespace kvant
