// States what must hold for any input of the recipe parsers. The fuzz target and the test of its seeds call
// the check.
#pragma once

#include <string>

#include "base/check.h"
#include "recipe/recipe.h"

namespace kvant {

// Checks that the printed forms of an accepted recipe parse to an equal recipe.
inline void check_printed_forms(const Recipe& recipe) {
  auto from_text = parse_recipe(to_string(recipe));
  KVANT_CHECK(from_text.ok(), "the printed string form is refused");
  from_text->name = recipe.name;
  from_text->summary = recipe.summary;
  from_text->tier = recipe.tier;
  KVANT_CHECK(*from_text == recipe, "the string form lost something");
  const auto from_json = recipe_from_json(to_json(recipe));
  KVANT_CHECK(from_json.ok(), "the printed JSON form is refused");
  KVANT_CHECK(*from_json == recipe, "the JSON form lost something");
}

// Runs both parsers and the list splitter on `text`. A text with ".json" skips the first parser, which would
// open a file.
inline void check_parsers(const std::string& text) {
  if (text.find(".json") == std::string::npos) {
    if (const auto recipe = parse_recipe(text); recipe.ok()) check_printed_forms(*recipe);
  }
  if (const auto recipe = recipe_from_json(text); recipe.ok()) check_printed_forms(*recipe);
  for (const std::string& one : split_recipe_list(text))
    KVANT_CHECK(!one.empty(), "an empty recipe in a list");
}

}  // namespace kvant
