#include "recipe/named_recipe.h"

#include <algorithm>

#include "base/similar_names.h"
#include "format/format.h"
#include "recipe/builtin.h"
#include "recipe/message_text.h"
#include "recipe/side_recipe.h"

namespace kvant {
namespace {

// llama.cpp's name for a cache type as the name of the format that is like it, behind any transforms.
std::string without_alias(const std::string& side) {
  const std::size_t colon = side.find(':');
  const std::size_t format = colon == std::string::npos ? 0 : colon + 1;
  for (const LlamaCppType& type : llama_cpp_types()) {
    if (side.substr(format) == type.name) return side.substr(0, format) + type.format;
  }
  return side;
}

Error unknown_recipe(const std::string& name) {
  std::vector<std::string> known;
  for (const Recipe& recipe : builtin_recipes()) known.push_back(recipe.name);
  auto near = similar_names(name, known, 3);
  for (const std::string& format : similar_format_names(name, 2)) {
    if (std::find(near.begin(), near.end(), format) == near.end()) near.push_back(format);
  }
  const std::string hint = near.empty() ? "; known recipes: " + listed(known) : did_you_mean(near);
  return error("unknown recipe or format {}{}", quoted(name), hint);
}

}  // namespace

Result<Recipe> plain_recipe(const std::string& k_side, const std::string& v_side) {
  Recipe recipe;
  recipe.name = k_side == v_side ? k_side : k_side + "/" + v_side;
  recipe.summary = "a plain pair of formats";
  auto k = parse_side(without_alias(k_side));
  if (!k.ok()) return k.error();
  auto v = parse_side(without_alias(v_side));
  if (!v.ok()) return v.error();
  recipe.k = std::move(k).value();
  recipe.v = std::move(v).value();
  return recipe;
}

Result<Recipe> named_recipe(const std::string& name) {
  for (const Recipe& recipe : builtin_recipes()) {
    if (recipe.name == name) return recipe;
  }
  const std::size_t slash = name.find('/');
  if (slash != std::string::npos) return plain_recipe(name.substr(0, slash), name.substr(slash + 1));
  auto both = plain_recipe(name, name);
  const bool has_transforms = name.find(':') != std::string::npos;
  if (!both.ok() && !has_transforms) return unknown_recipe(name);
  return both;
}

}  // namespace kvant
