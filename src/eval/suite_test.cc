#include "eval/suite.h"

#include <gtest/gtest.h>

#include <set>

#include "recipe/plan.h"
#include "recipe/recipe.h"
#include "recipe/stand_in_constants.h"

namespace kvant {
namespace {

// Returns the shape of the model for which the suites are written, because suites may name its layers.
Geometry small_model() {
  Geometry g;
  g.model = "test";
  g.n_layers = 30;
  g.n_heads = 9;
  g.n_kv_heads = 3;
  g.head_dim = 64;
  g.softmax_scale = 0.125F;
  g.trained_context = 8192;
  g.sliding_window.assign(g.n_layers, 0);
  return g;
}

class EverySuite : public ::testing::TestWithParam<Suite> {};
INSTANTIATE_TEST_SUITE_P(Suites, EverySuite, ::testing::ValuesIn(suites()), [](const auto& suite) {
  std::string name = suite.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST_P(EverySuite, HasRecipesThatAModelCanHave) {
  std::vector<std::string> recipes = {GetParam().reference};
  for (const SuiteRow& row : GetParam().rows) recipes.push_back(row.recipe);
  for (const std::string& text : recipes) {
    const auto recipe = parse_recipe(text);
    ASSERT_TRUE(recipe.ok()) << text << ": " << recipe.error().message;
    const auto plan = resolve(*recipe, small_model(), stand_in_constants(*recipe, small_model()));
    EXPECT_TRUE(plan.ok()) << text << ": " << plan.error().message;
  }
}

TEST_P(EverySuite, ComparesEachRecipeOnceUnderALabelOfItsOwn) {
  std::set<std::string> labels, recipes = {to_string(*parse_recipe(GetParam().reference))};
  EXPECT_FALSE(GetParam().rows.empty());
  for (const SuiteRow& row : GetParam().rows) {
    EXPECT_FALSE(row.label.empty());
    EXPECT_TRUE(labels.insert(row.label).second) << row.label;
    EXPECT_TRUE(recipes.insert(to_string(*parse_recipe(row.recipe))).second) << row.recipe;
  }
}

TEST_P(EverySuite, SaysWhatItIs) {
  EXPECT_FALSE(GetParam().title.empty());
  EXPECT_GT(GetParam().chunks, 0);
  ASSERT_FALSE(GetParam().contexts.empty());
  for (const int context : GetParam().contexts) EXPECT_EQ(context % 2, 0);
  const auto found = find_suite(GetParam().name);
  ASSERT_TRUE(found.ok());
  // The comparison of titles fails if another suite has the same name.
  EXPECT_EQ(found->title, GetParam().title);
}

TEST(Suites, AnUnknownNameListsAll) {
  const auto found = find_suite("vecinfer");
  ASSERT_FALSE(found.ok());
  for (const Suite& suite : suites())
    EXPECT_NE(found.error().message.find(suite.name + " "), std::string::npos) << suite.name;
}

}  // namespace
}  // namespace kvant
