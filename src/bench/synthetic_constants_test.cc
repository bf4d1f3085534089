#include "bench/synthetic_constants.h"

#include <gtest/gtest.h>

#include <set>

#include "recipe/plan.h"
#include "recipe/stand_in_constants.h"

namespace kvant {
namespace {

TEST(SyntheticConstants, VaryCodebooksAndKeepTheRest) {
  Geometry g;
  g.model = "test";
  g.n_layers = 1;
  g.n_heads = 2;
  g.n_kv_heads = 1;
  g.head_dim = 64;
  g.sliding_window = {0};
  // This recipe needs smoothing factors and codebooks.
  const Recipe recipe = *parse_recipe("vecinfer-2bit");
  const auto constants = synthetic_constants(recipe, g), plain = stand_in_constants(recipe, g);
  int codebooks = 0;
  plain->for_each([&](int layer, int head, Side side, const std::string& name, const auto& values) {
    const auto found = constants->find(layer, head, side, name);
    ASSERT_EQ(found.size(), values.size()) << name;
    const std::set<float> distinct(found.begin(), found.end());
    if (distinct.size() == 1) {
      EXPECT_EQ(found[0], values[0]) << name;
      return;
    }
    ++codebooks;
    EXPECT_GT(distinct.size(), found.size() / 2) << name;
  });
  // Keys and values have one codebook each.
  EXPECT_EQ(codebooks, 2);
}

}  // namespace
}  // namespace kvant
