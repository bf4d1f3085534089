// Parses recipes that consist of a name alone, without key=value items.
#pragma once

#include <string>

#include "base/result.h"
#include "recipe/recipe.h"

namespace kvant {

// Parses the name of a built-in recipe, a format SIDE, or a pair SIDE/SIDE. The error for an unknown name
// suggests the nearest names.
Result<Recipe> named_recipe(const std::string& name);

}  // namespace kvant
