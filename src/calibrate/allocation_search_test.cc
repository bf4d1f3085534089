#include "calibrate/allocation_search.h"

#include <gtest/gtest.h>

#include <cmath>

#include "cache/cache_fixture.h"
#include "calibrate/size_budget.h"
#include "eval/cache_size.h"
#include "recipe/bit_allocation.h"

namespace kvant {
namespace {

using testing::made_up_constants;
using testing::small_geometry;

TEST(AllocationSearch, FindsTheBendOfTheLeastDivergence) {
  int calls = 0;
  const auto trials = search_bends(60, [&](const SensitivityBend& bend) -> Result<double> {
    ++calls;
    return std::pow(bend.keys - 1.5, 2) + std::pow(bend.contrast + 0.3, 2) + bend.curve * bend.curve +
           std::pow(bend.depth, 2);
  });
  ASSERT_TRUE(trials.ok());
  EXPECT_EQ(calls, std::ssize(*trials));
  EXPECT_EQ(trials->front().bend, SensitivityBend{});
  const SensitivityBend best = best_trial(*trials).bend;
  EXPECT_NEAR(best.keys, 1.5, 0.01);
  EXPECT_NEAR(best.contrast, -0.3, 0.06);
  EXPECT_EQ(best.curve, 0);
  EXPECT_EQ(best.depth, 0);
}

TEST(AllocationSearch, StopsAfterItsTrials) {
  const auto trials =
      search_bends(5, [](const SensitivityBend& bend) -> Result<double> { return -bend.keys; });
  ASSERT_TRUE(trials.ok());
  EXPECT_EQ(trials->size(), 5U);
}

TEST(AllocationSearch, BendsSensitivitiesByHand) {
  const Geometry g = small_geometry(64, 2, 1, 3);
  Recipe recipe = *parse_recipe("k=prog4,v=prog4,budget=3,ladder=prog2+prog4");
  Constants constants;
  for (int layer = 0; layer < 3; ++layer)
    for (const Side side : kSides) constants.set(layer, 0, side, sensitivity_constant(recipe), {4, 1});
  const Constants bent =
      bent_sensitivities(constants, recipe, g, {.keys = 1, .depth = 2, .contrast = 0.5, .curve = 1});
  // The probe is prog2 with sensitivity 4, and 4^1.5 = 8. The ratio of prog4 is (1/4)^2. The last layer's
  // sensitivities are multiplied by four.
  const auto keys = bent.find(2, 0, Side::key, sensitivity_constant(recipe));
  EXPECT_NEAR(keys[0], 2 * 4 * 8, 1e-4);
  EXPECT_NEAR(keys[1], 2 * 4 * 0.5, 1e-5);
  const auto values = bent.find(1, 0, Side::value, sensitivity_constant(recipe));
  EXPECT_NEAR(values[0], 2 * 8, 1e-4);
}

TEST(SizeBudget, IsReadFromText) {
  EXPECT_EQ(parse_size_budget("2.5bit")->bits, 2.5);
  EXPECT_EQ(parse_size_budget("2.5bit")->context, 0);
  EXPECT_EQ(parse_size_budget("3bits@8k")->context, 8192);
  EXPECT_EQ(parse_size_budget("64MiB@16k")->bytes, 64 << 20);
  EXPECT_EQ(parse_size_budget("1.5GB@1000")->bytes, 1500000000);
  for (const char* wrong : {"", "bit", "-1bit", "64MiB", "64@", "2.5", "many@4k", "1MiB@0.5", "2bit@x"})
    EXPECT_FALSE(parse_size_budget(wrong).ok()) << wrong;
}

TEST(SizeBudget, BytesAreAPositiveNumberThatFits) {
  EXPECT_EQ(*parse_bytes("1.5KiB"), 1536);
  EXPECT_EQ(*parse_bytes("7"), 7);
  for (const char* wrong : {"", "GiB", "0", "0.5", "-1GiB", "1e30GiB", "1e19", "1e400", "nan", "4 apples"})
    EXPECT_FALSE(parse_bytes(wrong).ok()) << wrong;
}

TEST(SizeBudget, AllocationsFillItButDontExceedIt) {
  const Geometry g = small_geometry(64, 6, 2, 4);
  Recipe recipe =
      *parse_recipe("k=hadamard:tcq2,v=hadamard:tcq2,sink=4,budget=2.5,ladder=tcq1+tcq2+tcq3+tcq4");
  const auto constants = made_up_constants(recipe, g);
  constexpr int kContext = 4096;
  for (const double bits : {1.6, 2.5, 3.9}) {
    const std::int64_t maximum = SizeBudget{bits, 0, 0}.bytes_at(g, kContext);
    const auto allocated = allocate_bytes(recipe, g, constants, maximum, kContext);
    ASSERT_TRUE(allocated.ok()) << allocated.error().message;
    EXPECT_EQ(allocated->budget, 0);
    const auto plan = resolve(*allocated, g, nullptr);  // the plan no longer needs the sensitivities
    ASSERT_TRUE(plan.ok()) << plan.error().message;
    const std::int64_t size = mean_cache_bytes(**plan, kContext);
    EXPECT_LE(size, maximum);
    const std::int64_t a_little = maximum / 20;
    EXPECT_GT(size, maximum - a_little);
  }
  EXPECT_FALSE(allocate_bytes(recipe, g, constants, 1000, kContext).ok());
}

}  // namespace
}  // namespace kvant
