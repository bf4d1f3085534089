#include "recipe/named_recipe.h"

#include <algorithm>

#include "base/similar_names.h"
#include "format/format.h"
#include "recipe/builtin.h"
#include "recipe/message_text.h"
#include "recipe/side_recipe.h"

namespace kvant {
namespace {

// Parses a side. After any transforms, the format may also be a cache type of llama.cpp.
Result<SideRecipe> parse_plain_side(const std::string& side) {
  const std::size_t colon = side.find(':');
  const std::size_t begin = colon == std::string::npos ? 0 : colon + 1;
  const std::string format = side.substr(begin);
  std::vector<std::string> types;
  for (const LlamaCppType& type : llama_cpp_types()) {
    if (format == type.name) return parse_side(side.substr(0, begin) + type.format);
    types.emplace_back(type.name);
  }
  if (find_format(format) == nullptr) return unknown_format(format, types);
  return parse_side(side);
}

// Returns the only number in a name such as "int4" or "4-bit", or an empty string.
std::string only_number(const std::string& name) {
  constexpr const char* kDigits = "0123456789";
  const std::size_t first = name.find_first_of(kDigits);
  if (first == std::string::npos) return "";
  const std::size_t end = std::min(name.find_first_not_of(kDigits, first), name.size());
  return name.find_first_of(kDigits, end) == std::string::npos ? name.substr(first, end - first) : "";
}

// Adds to the suggestions `near` kvant's own recipe of the bits that a name like "int4" asks for, and drops
// suggestions of other bits. Changes nothing if the name is nearly the name of a recipe.
void suggest_bits(const std::string& name, const std::vector<std::string>& known,
                  std::vector<std::string>& near) {
  const std::string bits = only_number(name), own = "kvant-" + bits + "bit";
  const auto is_known = [&](const std::string& recipe) {
    return std::find(known.begin(), known.end(), recipe) != known.end();
  };
  constexpr std::size_t kNearlyEqual = 2;  // letters
  const bool is_near =
      !near.empty() && is_known(near.front()) &&
      std::max(near.front().size(), name.size()) <= std::min(near.front().size(), name.size()) + kNearlyEqual;
  if (bits.empty() || is_near || !is_known(own)) return;
  std::erase_if(
      near, [&](const std::string& other) { return other == own || other.find(bits) == std::string::npos; });
  near.insert(near.begin(), own);
}

Error unknown_recipe(const std::string& name) {
  std::vector<std::string> known;
  for (const Recipe& recipe : builtin_recipes()) known.push_back(recipe.name);
  auto near = similar_names(name, known, 3);
  for (const std::string& format : similar_format_names(name, 2)) {
    if (std::find(near.begin(), near.end(), format) == near.end()) near.push_back(format);
  }
  suggest_bits(name, known, near);
  const std::string hint =
      near.empty() ? "; known recipes: " + listed(known) + ", or a file FILE.json" : did_you_mean(near);
  return error("unknown recipe or format {}{}", quoted(name), hint);
}

// Returns whether `name` is a path. A pair of formats contains a slash as well.
bool is_path(const std::string& name) {
  return name.starts_with('/') || name.starts_with("./") || name.starts_with("../") || name.starts_with("~/");
}

}  // namespace

Result<Recipe> plain_recipe(const std::string& k_side, const std::string& v_side) {
  Recipe recipe;
  recipe.name = k_side == v_side ? k_side : k_side + "/" + v_side;
  recipe.summary = "a plain pair of formats";
  auto k = parse_plain_side(k_side);
  if (!k.ok()) return k.error();
  auto v = parse_plain_side(v_side);
  if (!v.ok()) return v.error();
  recipe.k = std::move(k).value();
  recipe.v = std::move(v).value();
  return recipe;
}

Result<Recipe> named_recipe(const std::string& name) {
  for (const Recipe& recipe : builtin_recipes()) {
    if (recipe.name == name) return recipe;
  }
  if (is_path(name)) return error("{} is not a recipe file: the name must end in .json", quoted(name));
  const std::size_t slash = name.find('/');
  if (slash != std::string::npos) return plain_recipe(name.substr(0, slash), name.substr(slash + 1));
  auto both = plain_recipe(name, name);
  const bool has_transforms = name.find(':') != std::string::npos;
  if (!both.ok() && !has_transforms) return unknown_recipe(name);
  return both;
}

}  // namespace kvant
