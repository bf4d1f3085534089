#include "recipe/stand_in_constants.h"

#include <gtest/gtest.h>

#include "recipe/plan.h"

namespace kvant {
namespace {

TEST(StandInConstants, ResolveEveryBuiltInRecipe) {
  Geometry g;
  g.model = "test";
  g.n_layers = 2;
  g.n_heads = 6;
  g.n_kv_heads = 2;
  g.head_dim = 64;
  g.softmax_scale = 0.125F;
  g.sliding_window = {0, 0};
  for (const Recipe& recipe : builtin_recipes()) {
    const auto plan = resolve(recipe, g, stand_in_constants(recipe, g));
    EXPECT_TRUE(plan.ok()) << recipe.name << ": " << (plan.ok() ? "" : plan.error().message);
  }
}

}  // namespace
}  // namespace kvant
