// Checks that docs/guide/recipes.md agrees with the tables in the code.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "recipe/builtin.h"
#include "recipe/recipe.h"
#include "recipe/recipe_fields.h"
#include "transform/transform.h"

namespace kvant {
namespace {

std::string page() {
  std::ifstream file(std::filesystem::path(__FILE__).parent_path() / "../../docs/guide/recipes.md");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(RecipesPage, ListsEveryKeyTransformAndAlias) {
  const std::string text = page();
  for (const RecipeField& field : recipe_fields()) {
    EXPECT_NE(text.find(fmt::format("`{}`", field.key)), std::string::npos) << field.key;
  }
  for (const TransformKind* kind : transform_kinds()) {
    const std::string row = fmt::format("| `{}` | ", kind->name);
    EXPECT_NE(text.find(row), std::string::npos) << kind->name;
  }
  for (const LlamaCppType& type : llama_cpp_types()) {
    EXPECT_NE(text.find(fmt::format("`{}`", type.name)), std::string::npos) << type.name;
    EXPECT_NE(text.find(fmt::format("`{}`", type.format)), std::string::npos) << type.format;
  }
}

TEST(RecipesPage, ShowsJsonThatParses) {
  const std::string text = page();
  const std::string fence = "```json\n";
  const std::size_t begin = text.find(fence) + fence.size();
  const auto recipe = recipe_from_json(text.substr(begin, text.find("```", begin) - begin));
  ASSERT_TRUE(recipe.ok()) << recipe.error().message;
  EXPECT_EQ(recipe->overrides.size(), 2U);
}

}  // namespace
}  // namespace kvant
