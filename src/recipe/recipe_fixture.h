// Recipes for tests that iterate over the registry.
#pragma once

#include <string>
#include <vector>

#include "recipe/builtin.h"

namespace kvant::testing {

// Returns the names of the built-in recipes that users are shown.
inline std::vector<std::string> product_recipes() {
  std::vector<std::string> names;
  for (const Recipe& recipe : builtin_recipes()) {
    if (recipe.tier == Tier::product) names.push_back(recipe.name);
  }
  return names;
}

}  // namespace kvant::testing
