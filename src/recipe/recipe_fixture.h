// Lists the names of recipes for tests, so a test covers each recipe of the registry.
#pragma once

#include <string>
#include <vector>

#include "recipe/builtin.h"

namespace kvant::testing {

// Returns the names of the built-in recipes that the help shows to users.
inline std::vector<std::string> product_recipes() {
  std::vector<std::string> names;
  for (const Recipe& recipe : builtin_recipes()) {
    if (recipe.tier == Tier::product) names.push_back(recipe.name);
  }
  return names;
}

}  // namespace kvant::testing
