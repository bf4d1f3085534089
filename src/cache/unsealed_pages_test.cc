#include <gtest/gtest.h>

#include "cache/cache_fixture.h"

namespace kvant {
namespace {

using testing::append_tokens;
using testing::contents;
using testing::plan_for;
using testing::small_geometry;

// Returns the bytes of a tail with room for `room` tokens: 2 layers x 2 heads x 2 sides of d = 64.
constexpr std::int64_t bf16_tail(int room) {
  return 2 * 2 * 2 * std::int64_t{room} * 64 * 2;
}

class TailFormat : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Formats, TailFormat,
                         ::testing::Values("bf16", "fp8", "int8", "tok8g32s", "tok4g64", "lm4"));

std::shared_ptr<const Plan> plan_with_tail(const std::string& format) {
  return plan_for("k=ch4g128,v=tok4g128,sink=4,tail=" + format, small_geometry());
}

TEST_P(TailFormat, TakesMemoryForTheTokensThatItHolds) {
  Cache cache(plan_with_tail(GetParam()), 0);
  const SequenceId s = cache.add();
  const double row_bytes = 64 * cache.plan().tail->bits(64) / 8;
  for (int n = 1; n <= 300; ++n) {
    ASSERT_TRUE(append_tokens(cache, s, 1, false).ok());
    const int unsealed = n % kPageTokens, room = (unsealed + 15) / 16 * 16;
    ASSERT_EQ(static_cast<double>(cache.bytes(s).tail), 8 * room * row_bytes) << n;
  }
}

// Every row of the tail must lie where readers find it, however the tail has grown.
TEST_P(TailFormat, ReadsTheSameRowsHoweverItGrew) {
  const auto plan = plan_with_tail(GetParam());
  Cache at_once(plan, 0), cache(plan, 0);
  const SequenceId expected = at_once.add(), s = cache.add();
  for (const int n : {1, 14, 2, 3, 60, 47, 1, 100}) {
    ASSERT_TRUE(append_tokens(cache, s, n).ok());
    Cache fresh(plan, 0);
    const SequenceId f = fresh.add();
    ASSERT_TRUE(append_tokens(fresh, f, cache.length(s)).ok());
    ASSERT_EQ(contents(cache, s), contents(fresh, f)) << cache.length(s);
    ASSERT_EQ(cache.bytes(s).all(), fresh.bytes(f).all()) << cache.length(s);
  }
  ASSERT_TRUE(append_tokens(at_once, expected, 228).ok());
  EXPECT_EQ(contents(cache, s), contents(at_once, expected));
}

TEST_P(TailFormat, ShrinksWhenItIsCut) {
  const auto plan = plan_with_tail(GetParam());
  Cache cache(plan, 0), fresh(plan, 0);
  const SequenceId s = cache.add(), f = fresh.add();
  ASSERT_TRUE(append_tokens(cache, s, 250).ok());
  ASSERT_TRUE(cache.truncate(s, 150).ok());
  ASSERT_TRUE(append_tokens(fresh, f, 150).ok());
  EXPECT_EQ(contents(cache, s), contents(fresh, f));
  EXPECT_EQ(cache.bytes(s).tail, fresh.bytes(f).tail);
  ASSERT_TRUE(cache.truncate(s, 40).ok());  // The cut opens a sealed page again.
  ASSERT_TRUE(fresh.truncate(f, 40).ok());
  EXPECT_EQ(contents(cache, s), contents(fresh, f));
  EXPECT_EQ(static_cast<double>(cache.bytes(s).tail), 8 * 48 * 64 * plan->tail->bits(64) / 8);
}

TEST_P(TailFormat, ReturnsToTheSmallerPageWhenAStepIsAborted) {
  Cache cache(plan_with_tail(GetParam()), 0);
  const SequenceId s = cache.add();
  ASSERT_TRUE(append_tokens(cache, s, 140).ok());
  const std::string before = contents(cache, s);
  const std::int64_t bytes = cache.bytes().all();
  for (const int n : {1, 5, 100, 116, 400}) {
    {
      auto step = cache.reserve({{s, n, false}});
      ASSERT_TRUE(step.ok());
      for (int layer = 0; layer < 2; ++layer) testing::run_layer_without_attention(**step, layer);
    }
    ASSERT_EQ(contents(cache, s), before) << n;
    ASSERT_EQ(cache.bytes().all(), bytes) << n;
  }
}

TEST(TailMemory, OfAWindowIsWholePagesAndTheOpenOne) {
  Cache cache(plan_for("k=ch4g128,v=tok4g128,window=128", small_geometry()), 0);
  const SequenceId s = cache.add();
  ASSERT_TRUE(append_tokens(cache, s, 300).ok());  // One page is sealed.
  EXPECT_EQ(cache.bytes(s).tail, bf16_tail(128 + 48));
}

}  // namespace
}  // namespace kvant
