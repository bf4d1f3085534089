// Lists the keys of a recipe. One table serves the string form, the JSON form and the help.
#pragma once

#include <span>
#include <string>

#include "base/result.h"
#include "recipe/recipe.h"

namespace kvant {

struct RecipeField {
  const char* key;
  // Describes the allowed values in the help, for example as "0 to 128".
  const char* values;
  // Describes the key in one line of the help.
  const char* summary;
  // Sets the field from its text. The error describes what is wrong with the text, but does not name the key.
  Status (*set)(Recipe& recipe, const std::string& text);
  std::string (*get)(const Recipe& recipe);
};

// Returns all fields except the overrides, in the order in which they are printed.
std::span<const RecipeField> recipe_fields();

// Sets the field or the override with the name `key`. The error names the key, or suggests the nearest keys
// if `key` is unknown.
Status set_recipe_key(Recipe& recipe, const std::string& key, const std::string& text);

}  // namespace kvant
