// Recipes that a name alone stands for.
#pragma once

#include <string>

#include "base/result.h"
#include "recipe/recipe.h"

namespace kvant {

// A built-in recipe, SIDE or SIDE/SIDE. Fails with the nearest names.
Result<Recipe> named_recipe(const std::string& name);

}  // namespace kvant
