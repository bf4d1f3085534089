// The keys of a recipe: one table serves the string form, the JSON form and the help.
#pragma once

#include <span>
#include <string>

#include "base/result.h"
#include "recipe/recipe.h"

namespace kvant {

struct RecipeField {
  const char* key;
  const char* values;   // for the help: "0 to 128"
  const char* summary;  // one line for the help
  // Sets the field from its text; the error says what is wrong with the text, but not the key.
  Status (*set)(Recipe& recipe, const std::string& text);
  std::string (*get)(const Recipe& recipe);
};

// Returns all fields except the overrides, in the order in which they are printed.
std::span<const RecipeField> recipe_fields();

// Sets the field or override called `key`. The error names the key, or suggests the nearest keys if it is
// unknown.
Status set_recipe_key(Recipe& recipe, const std::string& key, const std::string& text);

}  // namespace kvant
