#include "bench/advice.h"

#include <gtest/gtest.h>

namespace kvant {
namespace {

AdviceRow row(const char* recipe, std::int64_t bytes, double kld, double tps, bool fits = true) {
  return {recipe, bytes, fits, true, kld, 0.9, tps, ""};
}

TEST(Advice, IsTheFastestWhoseDivergenceHardlyCounts) {
  const Advice advice =
      advise({row("exact", 800, 0, 50), row("good", 300, 0.004, 95), row("better", 400, 0.001, 90),
              row("coarse", 100, 0.3, 200), row("huge", 900, 0, 300, false)});
  ASSERT_TRUE(advice.recommends);
  // "better" is nearly as fast as "good", and closer to the unquantized cache.
  EXPECT_EQ(advice.rows[0].recipe, "better");
  EXPECT_EQ(advice.rows[1].recipe, "exact");
  EXPECT_EQ(advice.rows[2].recipe, "good");
  EXPECT_EQ(advice.rows[3].recipe, "coarse");
  EXPECT_EQ(advice.rows[4].recipe, "huge");
  EXPECT_NE(advice.why.find("better fits"), std::string::npos);
}

TEST(Advice, TakesTheClosestWhereNothingIsGood) {
  const Advice advice = advise({row("a", 1, 0.5, 100), row("b", 1, 0.04, 60), row("c", 1, 0.07, 80)});
  // "c" is within twice the least divergence, and faster.
  EXPECT_EQ(advice.rows[0].recipe, "c");
}

TEST(Advice, RecommendsNothingWhereNothingFitsOrWasMeasured) {
  EXPECT_FALSE(advise({}).recommends);
  EXPECT_FALSE(advise({row("a", 1, 0, 1, false)}).recommends);
  AdviceRow unknown = row("a", 1, 0, 1);
  unknown.measured = false;
  EXPECT_FALSE(advise({unknown}).recommends);
}

}  // namespace
}  // namespace kvant
