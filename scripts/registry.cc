// Prints kvant's registries (formats, transforms, recipes, keys of recipes, suites, architectures) as JSON.
// scripts/reference.py makes docs/reference from this output, and the table of recipes that the Python
// package reads.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "eval/suite.h"
#include "format/format.h"
#include "model/architecture.h"
#include "recipe/builtin.h"
#include "recipe/recipe_fields.h"
#include "recipe/side_recipe.h"
#include "recipe/uncalibrated_recipe.h"
#include "transform/transform.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

Json format_to_json(const std::string& name) {
  const Format& format = *find_format(name);
  // `direct` says that the CPU backend multiplies codes or numbers as they are stored. Other formats are
  // decoded first.
  const bool direct = format.code_scheme(128).has_value() || format.number_type() != NumberType::none;
  return {{"name", name},
          {"bits_64", format.bits(64)},
          {"bits_128", format.bits(128)},
          {"row_wise", format.row_wise()},
          {"constants", format.needed_constants()},
          {"direct", direct}};
}

Json formats() {
  Json families = Json::array();
  for (const FormatFamily* family : format_families()) {
    Json members = Json::array();
    for (const std::string& name : family->members) members.push_back(format_to_json(name));
    families.push_back({{"pattern", family->pattern}, {"summary", family->summary}, {"members", members}});
  }
  return families;
}

Json transforms() {
  Json kinds = Json::array();
  for (const TransformKind* kind : transform_kinds()) {
    kinds.push_back({{"name", kind->name}, {"summary", kind->summary}, {"calibrated", kind->calibrated}});
  }
  return kinds;
}

// Returns a model with the usual head size, because an uncalibrated recipe depends on nothing else of the
// model.
Geometry usual_geometry() {
  Geometry geometry;
  geometry.model = "any model";
  geometry.n_layers = geometry.n_heads = geometry.n_kv_heads = 1;
  geometry.head_dim = 128;
  geometry.sliding_window = {0};
  return geometry;
}

// Returns the values that differ from the values of an empty recipe.
Json values_of(const Recipe& recipe) {
  const Recipe none;
  Json values = Json::object();
  for (const RecipeField& field : recipe_fields()) {
    const std::string value = field.get(recipe);
    if (value != field.get(none)) values[field.key] = value;
  }
  for (const SideOverride& override : recipe.overrides)
    values[override_key(override)] = to_string(override.recipe);
  return values;
}

Json recipes() {
  const Geometry geometry = usual_geometry();
  Json all = Json::array();
  for (const Recipe& recipe : builtin_recipes()) {
    Json json = {{"name", recipe.name},
                 {"tier", recipe.tier == Tier::product ? "product" : "comparison"},
                 {"recipe", to_string(recipe)},
                 {"values", values_of(recipe)},
                 {"summary", recipe.summary}};
    if (lacks_optional_constants(recipe, geometry, nullptr))
      json["uncalibrated"] = uncalibrated_recipe(recipe, geometry).value().name;
    all.push_back(std::move(json));
  }
  return all;
}

Json keys() {
  const Recipe none;
  Json all = Json::array();
  for (const RecipeField& field : recipe_fields()) {
    all.push_back({{"key", field.key},
                   {"values", field.values},
                   {"summary", field.summary},
                   {"default", field.get(none)}});
  }
  return all;
}

Json aliases() {
  Json all = Json::array();
  for (const LlamaCppType& type : llama_cpp_types())
    all.push_back({{"name", type.name}, {"format", type.format}});
  return all;
}

Json evaluation_suites() {
  Json all = Json::array();
  for (const Suite& suite : suites()) all.push_back({{"name", suite.name}, {"title", suite.title}});
  return all;
}

Json architecture_list() {
  Json all = Json::array();
  for (const Architecture& architecture : architectures()) all.push_back(architecture.name);
  return all;
}

}  // namespace
}  // namespace kvant

int main() {
  const kvant::Json all = {{"formats", kvant::formats()},
                           {"transforms", kvant::transforms()},
                           {"recipes", kvant::recipes()},
                           {"keys", kvant::keys()},
                           {"aliases", kvant::aliases()},
                           {"suites", kvant::evaluation_suites()},
                           {"architectures", kvant::architecture_list()}};
  fmt::print("{}\n", all.dump(1));
  return 0;
}
