#include "recipe/uncalibrated_recipe.h"

#include <gtest/gtest.h>

#include "recipe/plan.h"
#include "recipe/stand_in_constants.h"

namespace kvant::uncalibrated_recipe_test {
namespace {

Geometry geometry(int head_dim) {
  Geometry g;
  g.model = "any";
  g.n_layers = 2;
  g.n_heads = g.n_kv_heads = 2;
  g.head_dim = head_dim;
  g.softmax_scale = 0.1F;
  g.sliding_window.assign(2, 0);
  return g;
}

std::shared_ptr<const Plan> resolved(const std::string& text, const Geometry& g,
                                     std::shared_ptr<const Constants> constants = nullptr) {
  const auto plan = resolve(*parse_recipe(text), g, std::move(constants));
  EXPECT_TRUE(plan.ok()) << text << ": " << plan.error().message;
  return *plan;
}

TEST(UncalibratedRecipe, OfKvantsRecipesIsTheUniformOneOfAsManyBits) {
  for (const int head_dim : {64, 80, 96, 112, 128, 256, 512}) {
    for (const std::string bits : {"4bit", "3bit", "2bit"}) {
      const auto plan = resolved("kvant-" + bits, geometry(head_dim));
      EXPECT_EQ(plan->name, "uniform-" + bits) << head_dim;
      EXPECT_EQ(label(plan->asked), "kvant-" + bits);
      const auto uniform = resolved("uniform-" + bits, geometry(head_dim));
      EXPECT_EQ(to_string(plan->recipe), to_string(uniform->recipe));
      EXPECT_EQ(uniform->calibration, CalibrationState::not_needed);
    }
  }
}

// An uncalibrated cache must never have the name of the calibrated recipe.
TEST(UncalibratedRecipe, ServesUnderItsOwnName) {
  const Geometry g = geometry(64);
  for (const Recipe& recipe : builtin_recipes()) {
    const auto plan = resolve(recipe, g, nullptr);
    // This recipe requires constants that do not exist.
    if (!plan.ok()) continue;
    EXPECT_EQ((*plan)->name == recipe.name, to_string((*plan)->recipe) == to_string(recipe)) << recipe.name;
  }
  EXPECT_EQ(resolved("kvant-1.5bit", g)->name, "k=hadamard:tcq1,v=hadamard:tcq1,sink=4");
  EXPECT_EQ(resolved("kvant-2bit,prompt=flashq,sink=8", g)->name, "uniform-2bit,prompt=flashq,sink=8");
  EXPECT_EQ(resolved("kvant-2bit,budget=3.5", g)->name, "uniform-3bit");
  EXPECT_EQ(resolved("kvant-2bit,budget=3.5,sink=8", g)->name, "k=hadamard:tcq3,v=hadamard:tcq3,sink=8");
  EXPECT_EQ(resolved("kvant-1.5bit,sink=8", g)->name, "k=hadamard:tcq1,v=hadamard:tcq1,sink=8");
}

TEST(UncalibratedRecipe, GivesWayToTheCalibratedOne) {
  const Geometry g = geometry(64);
  const Recipe recipe = *parse_recipe("kvant-2bit");
  const auto plan = resolved("kvant-2bit", g, stand_in_constants(recipe, g));
  EXPECT_EQ(plan->name, "kvant-2bit");
  EXPECT_EQ(to_string(plan->recipe), to_string(recipe));
}

TEST(UncalibratedRecipe, ReplacesOneThatIsHalfCalibrated) {
  const Geometry g = geometry(64);
  const Recipe recipe = *parse_recipe("kvant-2bit");
  const auto all = stand_in_constants(recipe, g);
  const std::string metric = "page-metric";
  Constants some;
  all->for_each([&](int layer, int head, Side side, const std::string& name, const auto& values) {
    if (layer != 1 || name != metric) some.set(layer, head, side, name, values);
  });
  EXPECT_FALSE(lacks_optional_constants(recipe, g, all.get()));
  EXPECT_TRUE(lacks_optional_constants(recipe, g, &some));
  EXPECT_EQ(resolved("kvant-2bit", g, std::make_shared<const Constants>(some))->name, "uniform-2bit");
}

TEST(UncalibratedRecipe, KeepsWhatTheRecipeSaysOfLayersAndHeads) {
  const auto plan = resolved("k=tcq2,v=tcq2,v@1.0=bf16,budget=2.4,ladder=tcq1+tcq2+tcq3", geometry(64));
  EXPECT_EQ(plan->name, "k=tcq2,v=tcq2,v@1.0=bf16");
  EXPECT_EQ(plan->head(1, 0).v.sealed->name(), "bf16");
  EXPECT_EQ(plan->head(1, 1).v.sealed->name(), "tcq2");
}

TEST(UncalibratedRecipe, TakesAllErrorsOfKeysAlike) {
  const auto plan = resolved("k=tcq2,v=tcq2,encode=shaped", geometry(64));
  EXPECT_EQ(plan->name, "k=tcq2,v=tcq2");
  EXPECT_EQ(plan->recipe.encode, Encode::plain);
}

}  // namespace
}  // namespace kvant::uncalibrated_recipe_test
