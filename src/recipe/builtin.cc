#include "recipe/builtin.h"

#include "base/check.h"

namespace kvant {
namespace {

void parse_into(std::vector<Recipe>& recipes, std::span<const BuiltinRecipe> entries) {
  for (const BuiltinRecipe& entry : entries) {
    auto recipe = parse_recipe(entry.text);
    KVANT_CHECK(recipe.ok(), recipe.error().message.c_str());
    recipe->name = entry.name;
    recipe->summary = entry.summary;
    recipe->tier = entry.tier;
    recipes.push_back(std::move(recipe).value());
  }
}

std::vector<Recipe> parse_all() {
  std::vector<Recipe> recipes;
#define KVANT_METHOD(method) parse_into(recipes, method##_recipes());
#include "recipe/methods.def"
#undef KVANT_METHOD
  return recipes;
}

}  // namespace

std::span<const Recipe> builtin_recipes() {
  static const std::vector<Recipe> recipes = parse_all();
  return recipes;
}

}  // namespace kvant
