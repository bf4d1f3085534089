#include "recipe/head_mix.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace kvant {
namespace {

Geometry geometry_of(int n_kv_heads) {
  Geometry geometry;
  geometry.n_layers = 2;
  geometry.n_heads = n_kv_heads;
  geometry.n_kv_heads = n_kv_heads;
  geometry.head_dim = 64;
  geometry.sliding_window.assign(2, 0);
  return geometry;
}

Recipe recipe_of(const std::string& text) {
  auto recipe = parse_recipe(text);
  EXPECT_TRUE(recipe.ok()) << recipe.error().message;
  return *recipe;
}

Constants priorities(const std::vector<float>& of_heads, const std::string& metric) {
  Constants constants;
  for (std::size_t i = 0; i < of_heads.size(); ++i)
    constants.set(1, static_cast<int>(i), Side::key, head_priority_constant(metric), {of_heads[i]});
  return constants;
}

TEST(HeadMix, PicksTheHeadsOfLowestPriority) {
  const Constants constants = priorities({5, 1, -2, 8, 3}, "gap-std");
  const auto picked = [&](const std::string& mix) {
    return *mixed_heads(recipe_of("mix_k=prog2,mix=" + mix), geometry_of(5), &constants, 1);
  };
  using Heads = std::vector<bool>;
  EXPECT_EQ(picked("0"), (Heads{false, false, false, false, false}));
  EXPECT_EQ(picked("0.19"), (Heads{false, false, false, false, false}));
  EXPECT_EQ(picked("0.2"), (Heads{false, false, true, false, false}));
  EXPECT_EQ(picked("0.5"), (Heads{false, true, true, false, false}));
  EXPECT_EQ(picked("0.6"), (Heads{false, true, true, false, true}));
  EXPECT_EQ(picked("1"), (Heads{true, true, true, true, true}));
}

TEST(HeadMix, TakesTheFirstOfEquals) {
  const Constants constants = priorities({2, 1, 1, 1}, "entropy");
  const auto mixed =
      mixed_heads(recipe_of("mix=0.5,mix_k=prog2,mix_metric=entropy"), geometry_of(4), &constants, 1);
  ASSERT_TRUE(mixed.ok());
  EXPECT_EQ(*mixed, (std::vector<bool>{false, true, true, false}));
}

// The product 0.29 * 100 is 28.999... in binary.
TEST(HeadMix, RoundsDecimalFractionsAsWritten) {
  const Constants constants = priorities(std::vector<float>(100, 1.0F), "gap-std");
  const auto mixed = mixed_heads(recipe_of("mix=0.29,mix_k=prog2"), geometry_of(100), &constants, 1);
  ASSERT_TRUE(mixed.ok());
  EXPECT_EQ(std::count(mixed->begin(), mixed->end(), true), 29);
}

TEST(HeadMix, AsksForCalibrationWherePrioritiesAreMissing) {
  const Constants constants = priorities({1, 2}, "gap-std");
  const Recipe recipe = recipe_of("mix=0.5,mix_k=prog2");
  EXPECT_TRUE(mixed_heads(recipe, geometry_of(2), &constants, 1).ok());
  const auto other_layer = mixed_heads(recipe, geometry_of(2), &constants, 0);
  ASSERT_FALSE(other_layer.ok());
  EXPECT_NE(other_layer.error().message.find("'priority/gap-std'"), std::string::npos);
  EXPECT_NE(other_layer.error().message.find("kvant calibrate"), std::string::npos);
  EXPECT_FALSE(mixed_heads(recipe, geometry_of(2), nullptr, 1).ok());
  EXPECT_TRUE(mixed_heads(recipe_of("fp8"), geometry_of(2), nullptr, 1).ok());
}

TEST(HeadMix, ChangesTheFormatButNotTheTransforms) {
  const Recipe recipe = recipe_of("k=hadamard:prog4,v=prog4,mix=0.5,mix_k=prog2,k@1.0=fp8");
  EXPECT_EQ(mixed_side_of(recipe, Side::key, 0, 0, true), (SideRecipe{{"hadamard"}, "prog2"}));
  EXPECT_EQ(mixed_side_of(recipe, Side::key, 0, 0, false), recipe.k);
  // The recipe sets no mix_v.
  EXPECT_EQ(mixed_side_of(recipe, Side::value, 0, 0, true), recipe.v);
  EXPECT_EQ(mixed_side_of(recipe, Side::key, 1, 0, true), (SideRecipe{{}, "fp8"}));
}

}  // namespace
}  // namespace kvant
