#include "recipe/recipe_fields.h"

#include <vector>

#include "base/similar_names.h"
#include "recipe/message_text.h"
#include "recipe/number_text.h"
#include "recipe/side_recipe.h"

namespace kvant {
namespace {

constexpr int kLargestWindow = 1 << 24;  // tokens: keeps sums of token indices far from overflow

// A side for all layers and heads: takes back what was said before about some of them.
Status set_side(Recipe& recipe, Side side, const std::string& text) {
  auto parsed = parse_side(text);
  if (!parsed.ok()) return parsed.error();
  (side == Side::key ? recipe.k : recipe.v) = std::move(parsed).value();
  std::erase_if(recipe.overrides, [side](const SideOverride& o) { return o.side == side; });
  return {};
}

Status set_sink(Recipe& recipe, const std::string& text) {
  const auto tokens = parse_count(text, kPageTokens);
  if (!tokens) return error("{} is not a number of tokens from 0 to {}", quoted(text), kPageTokens);
  recipe.sink = *tokens;
  return {};
}

Status set_window(Recipe& recipe, const std::string& text) {
  const auto tokens = parse_count(text, kLargestWindow);
  if (!tokens || *tokens % kPageTokens != 0) {
    return error("{} is not a multiple of {} tokens (0, 128, 256, ...)", quoted(text), kPageTokens);
  }
  recipe.window = *tokens;
  return {};
}

Status set_prefill(Recipe& recipe, const std::string& text) {
  if (text == "all") {
    recipe.prefill = kPrefillAll;
    return {};
  }
  const auto tokens = parse_count(text, kLargestWindow);
  if (!tokens || *tokens == 0 || *tokens % kPageTokens != 0) {
    return error("{} is neither 'all' nor a multiple of {} tokens (128, 256, ...)", quoted(text),
                 kPageTokens);
  }
  recipe.prefill = *tokens;
  return {};
}

std::string prefill_text(const Recipe& recipe) {
  return recipe.prefill == kPrefillAll ? "all" : std::to_string(recipe.prefill);
}

constexpr RecipeField kFields[] = {
    {"k", "SIDE", "how K is stored: [transform+...:]format",
     [](Recipe& r, const std::string& text) { return set_side(r, Side::key, text); },
     [](const Recipe& r) { return to_string(r.k); }},
    {"v", "SIDE", "how V is stored: [transform+...:]format",
     [](Recipe& r, const std::string& text) { return set_side(r, Side::value, text); },
     [](const Recipe& r) { return to_string(r.v); }},
    {"sink", "0 to 128", "the first tokens of a sequence that stay unquantized", set_sink,
     [](const Recipe& r) { return std::to_string(r.sink); }},
    {"window", "a multiple of 128", "the newest tokens that stay unquantized", set_window,
     [](const Recipe& r) { return std::to_string(r.window); }},
    {"prefill", "a multiple of 128, or all", "tokens of a prompt that see each other unquantized",
     set_prefill, prefill_text},
};

Error unknown_key(const std::string& key) {
  std::vector<std::string> keys;
  for (const RecipeField& field : kFields) keys.emplace_back(field.key);
  const auto near = similar_names(key, keys, 3);
  return error("unknown key {}{}; the keys are {}, and k@LAYERS and v@LAYERS", quoted(key),
               did_you_mean(near), listed(keys));
}

Status with_key(const std::string& key, const Status& status) {
  if (status.ok()) return {};
  return error("{}: {}", key, status.error().message);
}

Status set_override(Recipe& recipe, const std::string& key, const std::string& text) {
  auto override = parse_override(key, text);
  if (!override.ok()) return override.error();
  recipe.overrides.push_back(std::move(override).value());
  return {};
}

}  // namespace

std::span<const RecipeField> recipe_fields() {
  return kFields;
}

Status set_recipe_key(Recipe& recipe, const std::string& key, const std::string& text) {
  if (is_override_key(key)) return set_override(recipe, key, text);
  for (const RecipeField& field : kFields) {
    if (key == field.key) return with_key(key, field.set(recipe, text));
  }
  return unknown_key(key);
}

}  // namespace kvant
