// Reads and writes the JSON form of recipes. The form is an object with the keys of the string form, and a
// list of overrides in their order.
#include <nlohmann/json.hpp>

#include "base/json_reader.h"
#include "recipe/message_text.h"
#include "recipe/named_recipe.h"
#include "recipe/recipe.h"
#include "recipe/recipe_fields.h"
#include "recipe/side_recipe.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kTierNames[] = {"product", "comparison"};

// Returns the value of a string member or number member as a text.
Result<std::string> member_text(const std::string& key, const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number()) return value.dump();
  return error("{} must be a string or a number", quoted(key));
}

Status set_tier(Recipe& recipe, const std::string& text) {
  for (Tier tier : {Tier::product, Tier::comparison}) {
    if (text != kTierNames[static_cast<int>(tier)]) continue;
    recipe.tier = tier;
    return {};
  }
  return error("tier: {} is neither 'product' nor 'comparison'", quoted(text));
}

Status set_member(Recipe& recipe, const std::string& key, const Json& value) {
  auto text = member_text(key, value);
  if (!text.ok()) return text.error();
  if (key == "tier") return set_tier(recipe, *text);
  if (key == "name" || key == "summary") {
    (key == "name" ? recipe.name : recipe.summary) = *text;
    return {};
  }
  return set_recipe_key(recipe, key, *text);
}

// Returns a field's text as a JSON number if the text is a number, else as a JSON string.
Json member_value(const std::string& text) {
  const auto value = parse_json(text);
  return value.ok() && value->is_number() ? *value : Json(text);
}

Status add_overrides(Recipe& recipe, const Json& overrides) {
  if (!overrides.is_array()) return error("'overrides' must be a list of strings such as \"k@0-3=bf16\"");
  for (const Json& item : overrides) {
    const std::string text = item.is_string() ? item.get<std::string>() : "";
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos || !is_override_key(text)) {
      return error("'overrides' must hold strings such as \"k@0-3=bf16\", not {}",
                   quoted(item.dump(-1, ' ', true)));
    }
    KVANT_RETURN_IF_ERROR(set_recipe_key(recipe, text.substr(0, equals), text.substr(equals + 1)));
  }
  return {};
}

// Returns the recipe that the JSON object modifies.
Result<Recipe> base_recipe(const Json& json) {
  if (!json.contains("recipe")) return Recipe{};
  if (!json["recipe"].is_string()) return error("'recipe' must be the name of a built-in recipe");
  return named_recipe(json["recipe"].get<std::string>());
}

Result<Recipe> recipe_from(const Json& json) {
  if (!json.is_object()) return error("a recipe must be a JSON object");
  auto recipe = base_recipe(json);
  if (!recipe.ok()) return recipe;
  for (const auto& [key, value] : json.items()) {
    // "figures" holds measured results of the recipe, for readers of the file.
    if (key == "recipe" || key == "overrides" || key == "figures") continue;
    KVANT_RETURN_IF_ERROR(set_member(*recipe, key, value));
  }
  if (json.contains("overrides")) KVANT_RETURN_IF_ERROR(add_overrides(*recipe, json["overrides"]));
  return recipe;
}

}  // namespace

std::string to_json(const Recipe& recipe) {
  Json json;
  json["name"] = recipe.name;
  json["summary"] = recipe.summary;
  json["tier"] = kTierNames[static_cast<int>(recipe.tier)];
  for (const RecipeField& field : recipe_fields()) json[field.key] = member_value(field.get(recipe));
  json["overrides"] = Json::array();
  for (const SideOverride& override : recipe.overrides) {
    json["overrides"].push_back(override_key(override) + "=" + to_string(override.recipe));
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

Result<Recipe> recipe_from_json(const std::string& json) {
  const auto parsed = parse_json(json);
  if (!parsed.ok()) return parsed.error();
  return recipe_from(*parsed);
}

}  // namespace kvant
