#include "serve/prefix_cache.h"

#include <gtest/gtest.h>

#include <numeric>

#include "cache/cache_fixture.h"
#include "recipe/recipe_fixture.h"

namespace kvant {
namespace {

using testing::append_tokens;
using testing::contents;
using testing::plan_for;
using testing::small_geometry;
using Tokens = std::vector<std::int32_t>;

constexpr std::int64_t kNoLimit = std::int64_t{1} << 40;

// Returns n tokens, counted up from `first`.
Tokens counted(int n, int first = 0) {
  Tokens tokens(n);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

Tokens joined(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Appends tokens to a new sequence and keeps the first n_kept of them.
SequenceId read_and_keep(Cache& cache, PrefixCache& prefixes, const Tokens& tokens, int n_kept) {
  const SequenceId sequence = cache.add();
  EXPECT_TRUE(append_tokens(cache, sequence, n_kept).ok());
  EXPECT_TRUE(prefixes.keep(sequence, std::span(tokens).first(n_kept), 0).ok());
  const int rest = static_cast<int>(tokens.size()) - n_kept;
  const bool read = rest == 0 || append_tokens(cache, sequence, rest).ok();
  EXPECT_TRUE(read);
  return sequence;
}

class EachProductRecipe : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(PrefixCache, EachProductRecipe, ::testing::ValuesIn(testing::product_recipes()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return !isalnum(c); }, '_');
                           return name;
                         });

// The fixture's keys and values depend only on a token's position, so both prompts get the same keys and
// values.
TEST_P(EachProductRecipe, GoesOnFromWhatIsKeptAsIfItHadReadAll) {
  const auto plan = plan_for(GetParam(), small_geometry());
  const Tokens prompt = counted(700);
  Cache alone(plan, 0);
  const SequenceId expected = alone.add();
  ASSERT_TRUE(append_tokens(alone, expected, 700).ok());

  Cache cache(plan, 0);
  PrefixCache prefixes(cache, kNoLimit);
  // Tokens that decode steps append later must not change what is kept.
  const SequenceId first = read_and_keep(cache, prefixes, joined(counted(512), counted(40, 9000)), 512);
  for (int i = 0; i < 150; ++i) ASSERT_TRUE(append_tokens(cache, first, 1, /*is_prompt=*/false).ok());
  cache.free(first);

  const auto match = prefixes.find(prompt);
  ASSERT_TRUE(match.ok());
  ASSERT_EQ(match->n_tokens, 512);
  EXPECT_EQ(cache.length(match->sequence), 512);
  ASSERT_TRUE(append_tokens(cache, match->sequence, 700 - 512).ok());
  EXPECT_EQ(contents(cache, match->sequence), contents(alone, expected));
  cache.free(match->sequence);
}

TEST_P(EachProductRecipe, CutsWhatIsKeptOnlyWhereThatIsExact) {
  const auto plan = plan_for(GetParam(), small_geometry());
  Cache cache(plan, 0);
  PrefixCache prefixes(cache, kNoLimit);
  cache.free(read_and_keep(cache, prefixes, counted(640), 640));
  const Tokens prompt =
      // The prompt shares two whole pages and part of a third.
      joined(counted(300), counted(300, 5000));
  const auto match = prefixes.find(prompt);
  ASSERT_TRUE(match.ok());
  EXPECT_EQ(match->n_common, 256);
  ASSERT_EQ(match->n_tokens, cuts_exactly(*plan) ? 256 : 0);
  if (match->n_tokens == 0) return;
  Cache alone(plan, 0);
  const SequenceId expected = alone.add();
  ASSERT_TRUE(append_tokens(alone, expected, 256).ok());
  EXPECT_EQ(contents(cache, match->sequence), contents(alone, expected));
  cache.free(match->sequence);
}

TEST(PrefixCache, LeavesATokenToBeRead) {
  Cache cache(plan_for("q8_0", small_geometry()), 0);
  PrefixCache prefixes(cache, kNoLimit);
  cache.free(read_and_keep(cache, prefixes, counted(256), 256));
  const auto match = prefixes.find(counted(256));
  ASSERT_TRUE(match.ok());
  EXPECT_EQ(match->n_tokens, 128);  // one token must remain, because the caller needs its logits
  cache.free(match->sequence);
  EXPECT_EQ(prefixes.find(counted(100)).value().n_tokens, 0);
  EXPECT_EQ(prefixes.find(counted(256, 1)).value().n_tokens, 0);
}

TEST(PrefixCache, TakesTheLongestOfSeveral) {
  Cache cache(plan_for("kivi-2bit", small_geometry()), 0);
  PrefixCache prefixes(cache, kNoLimit);
  for (const int n : {128, 384, 256}) cache.free(read_and_keep(cache, prefixes, counted(n), n));
  EXPECT_EQ(prefixes.size(), 3);
  const auto match = prefixes.find(counted(500));
  ASSERT_TRUE(match.ok());
  EXPECT_EQ(match->n_tokens, 384);
  cache.free(match->sequence);
}

TEST(PrefixCache, DropsWhatWasNotUsedForLongest) {
  Cache cache(plan_for("kivi-2bit", small_geometry()), 0);
  const SequenceId measured = cache.add();
  ASSERT_TRUE(append_tokens(cache, measured, 256).ok());
  const std::int64_t bytes = cache.bytes(measured).all();
  cache.free(measured);
  PrefixCache prefixes(cache, 2 * bytes);
  cache.free(read_and_keep(cache, prefixes, counted(256, 0), 256));
  cache.free(read_and_keep(cache, prefixes, counted(256, 1000), 256));
  const auto used = prefixes.find(counted(300, 0));
  ASSERT_TRUE(used.ok());
  cache.free(used->sequence);
  cache.free(read_and_keep(cache, prefixes, counted(256, 2000), 256));
  EXPECT_EQ(prefixes.size(), 2);
  EXPECT_EQ(prefixes.dropped(), 1);
  EXPECT_LE(prefixes.bytes(), 2 * bytes);
  EXPECT_EQ(prefixes.find(counted(300, 1000)).value().n_tokens, 0);
  const auto kept = prefixes.find(counted(300, 0));
  EXPECT_EQ(kept.value().n_tokens, 256);
  cache.free(kept->sequence);
}

TEST(PrefixCache, GivesItsMemoryBack) {
  Cache cache(plan_for("kvant-3bit", small_geometry()), 0);
  {
    PrefixCache prefixes(cache, kNoLimit);
    cache.free(read_and_keep(cache, prefixes, counted(640), 640));
    EXPECT_GT(cache.bytes().all(), 0);
    EXPECT_TRUE(prefixes.drop_oldest());
    EXPECT_FALSE(prefixes.drop_oldest());
    EXPECT_EQ(cache.bytes().all(), 0);
    cache.free(read_and_keep(cache, prefixes, counted(640), 640));
  }
  EXPECT_EQ(cache.bytes().all(), 0);
}

TEST(PrefixCache, KeepsNothingLargerThanItsLimit) {
  Cache cache(plan_for("q8_0", small_geometry()), 0);
  PrefixCache prefixes(cache, 100);
  cache.free(read_and_keep(cache, prefixes, counted(256), 256));
  EXPECT_EQ(prefixes.size(), 0);
}

}  // namespace
}  // namespace kvant
