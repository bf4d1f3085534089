// Finds the recipe that replaces a recipe on a model whose calibration lacks optional constants. The
// replacement has a name of its own, so one name never stands for two caches.
#pragma once

#include "base/geometry.h"
#include "base/result.h"
#include "recipe/recipe.h"
#include "transform/constants.h"

namespace kvant {

// Returns whether `constants`, which may be null, lack optional constants of the recipe. These are the
// sensitivities to the ladder's formats, and the metric for errors of K.
bool lacks_optional_constants(const Recipe& recipe, const Geometry& geometry, const Constants* constants);

// Returns `recipe` without the optional needs, so the budget buys one format everywhere, and all errors of K
// count alike. The result is named after the built-in recipe with an equal cache. If there is none, the name
// is a similar built-in recipe with the items that differ, or the string form. Returns an error if
// allocate_bits() does.
Result<Recipe> uncalibrated_recipe(const Recipe& recipe, const Geometry& geometry);

}  // namespace kvant
