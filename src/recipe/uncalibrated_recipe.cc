#include "recipe/uncalibrated_recipe.h"

#include "recipe/bit_allocation.h"
#include "recipe/constant_needs.h"

namespace kvant {
namespace {

// Turns a built-in name with items into the name of the uncalibrated recipe with the same items. For example,
// "kvant-4bit,sink=8" becomes "uniform-4bit,sink=8". Returns an empty string if there are no items, or if the
// name is not a built-in recipe's.
std::string name_with_items(const std::string& asked, const Geometry& geometry) {
  const std::size_t comma = asked.find(',');
  if (comma == std::string::npos) return "";
  for (const Recipe& builtin : builtin_recipes()) {
    if (builtin.name != asked.substr(0, comma)) continue;
    const auto served = uncalibrated_recipe(builtin, geometry);
    return served.ok() ? served->name + asked.substr(comma) : "";
  }
  return "";
}

// Names the recipe by the first form that applies: a built-in recipe's name, a built-in name with the
// differing items, or the string form.
void name_by_registry(Recipe& recipe, const Geometry& geometry) {
  const std::string text = to_string(recipe);
  for (const Recipe& builtin : builtin_recipes()) {
    if (to_string(builtin) != text) continue;
    recipe = builtin;
    return;
  }
  const std::string name = name_with_items(recipe.name, geometry);
  const auto parsed = parse_recipe(name);
  const bool is_same = parsed.ok() && !parsed->name.empty() && to_string(*parsed) == text;
  recipe.name = is_same ? name : text;
  recipe.summary.clear();
}

bool lacks_metrics(const Recipe& recipe, const Geometry& geometry, const Constants* constants) {
  for (int layer = 0; layer < geometry.n_layers; ++layer) {
    for (int kv_head = 0; kv_head < geometry.kv_heads(layer); ++kv_head) {
      for (const ConstantNeed& need : constant_needs(recipe, geometry, layer, kv_head, Side::key)) {
        if (need.kind != NeedKind::metric) continue;
        if (constants == nullptr || constants->find(layer, kv_head, Side::key, need.name).empty())
          return true;
      }
    }
  }
  return false;
}

}  // namespace

bool lacks_optional_constants(const Recipe& recipe, const Geometry& geometry, const Constants* constants) {
  if (recipe.budget > 0 && !knows_sensitivities(recipe, geometry, constants)) return true;
  return lacks_metrics(recipe, geometry, constants);
}

Result<Recipe> uncalibrated_recipe(const Recipe& recipe, const Geometry& geometry) {
  auto even = allocate_bits(recipe, geometry, nullptr);
  if (!even.ok()) return even;
  even->budget = 0;
  even->ladder.clear();
  even->encode = Encode::plain;
  name_by_registry(*even, geometry);
  return even;
}

}  // namespace kvant
