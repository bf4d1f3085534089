// Reads and writes the string form of recipes. docs/guide/recipes.md has the grammar.
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "recipe/message_text.h"
#include "recipe/named_recipe.h"
#include "recipe/recipe.h"
#include "recipe/recipe_fields.h"
#include "recipe/side_recipe.h"

namespace kvant {
namespace {

std::string trimmed(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> items;
  std::stringstream stream(text);
  for (std::string item; std::getline(stream, item, separator);) items.push_back(trimmed(item));
  if (text.empty() || text.back() == separator) items.emplace_back();
  return items;
}

Result<Recipe> read_recipe_file(const std::string& path) {
  errno = 0;
  std::ifstream file(path);
  std::stringstream text;
  if (!file || !(text << file.rdbuf())) {
    return error("cannot read the recipe file {}: {}", quoted(path),
                 errno != 0 ? std::strerror(errno) : "it is empty");
  }
  auto recipe = recipe_from_json(text.str());
  if (!recipe.ok()) return error("recipe file {}: {}", quoted(path), recipe.error().message);
  if (recipe->name.empty()) recipe->name = path;
  return recipe;
}

Status apply_item(Recipe& recipe, const std::string& item) {
  const std::size_t equals = item.find('=');
  if (equals == std::string::npos) {
    return error("{} is not of the form key=value, and only the first item can be a recipe's name",
                 quoted(item));
  }
  return set_recipe_key(recipe, trimmed(item.substr(0, equals)), trimmed(item.substr(equals + 1)));
}

}  // namespace

Result<Recipe> parse_recipe(const std::string& text) {
  const std::vector<std::string> items = split(text, ',');
  if (items[0].empty()) return error("the recipe {} does not begin with a name or key=value", quoted(text));
  Recipe recipe;
  std::size_t next = 0;
  if (items[0].find('=') == std::string::npos) {
    auto named = items[0].ends_with(".json") ? read_recipe_file(items[0]) : named_recipe(items[0]);
    if (!named.ok()) return named;
    recipe = std::move(named).value();
    next = 1;
  }
  for (; next < items.size(); ++next) {
    const Status applied = apply_item(recipe, items[next]);
    if (!applied.ok()) return error("recipe {}: {}", quoted(text), applied.error().message);
    if (!recipe.name.empty()) recipe.name += "," + items[next];
  }
  return recipe;
}

std::vector<std::string> split_recipe_list(const std::string& list) {
  std::vector<std::string> texts;
  for (const std::string& part : split(list, ';')) {
    bool first = true;
    for (const std::string& item : split(part, ',')) {
      if (item.empty()) continue;
      if (first || item.find('=') == std::string::npos) {
        texts.push_back(item);
      } else {
        texts.back() += "," + item;
      }
      first = false;
    }
  }
  return texts;
}

std::string to_string(const Recipe& recipe) {
  const Recipe plain;
  std::string text = fmt::format("k={},v={}", to_string(recipe.k), to_string(recipe.v));
  for (const RecipeField& field : recipe_fields().subspan(2)) {
    const std::string value = field.get(recipe);
    if (value != field.get(plain)) text += fmt::format(",{}={}", field.key, value);
  }
  for (const SideOverride& override : recipe.overrides) {
    text += fmt::format(",{}={}", override_key(override), to_string(override.recipe));
  }
  return text;
}

std::string label(const Recipe& recipe) {
  return recipe.name.empty() ? to_string(recipe) : recipe.name;
}

}  // namespace kvant
