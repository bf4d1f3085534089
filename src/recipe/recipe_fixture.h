// Lists the names of recipes for tests, so a test covers each recipe of the registry.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/testing/emulation.h"
#include "recipe/builtin.h"

namespace kvant::testing {

// Returns the names of the built-in recipes that the help shows to users. On an emulated processor every
// sixth name is enough.
inline std::vector<std::string> product_recipes() {
  std::vector<std::string> names;
  for (const Recipe& recipe : builtin_recipes()) {
    if (recipe.tier == Tier::product) names.push_back(recipe.name);
  }
  return fewer(std::move(names), 6);
}

}  // namespace kvant::testing
