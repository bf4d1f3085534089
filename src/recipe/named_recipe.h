// Recipes that are given by a name alone.
#pragma once

#include <string>

#include "base/result.h"
#include "recipe/recipe.h"

namespace kvant {

// Parses a built-in recipe, SIDE or SIDE/SIDE. The error suggests the nearest names.
Result<Recipe> named_recipe(const std::string& name);

}  // namespace kvant
