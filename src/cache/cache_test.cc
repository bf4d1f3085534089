#include "cache/cache.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/float16.h"
#include "base/linear_correction.h"
#include "cache/cache_fixture.h"
#include "cache/synthetic_sequence.h"

namespace kvant {
namespace {

using testing::append_tokens;
using testing::contents;
using testing::plan_for;
using testing::small_geometry;

const char* const kRecipes[] = {
    "bf16",
    "k=ch4g128,v=tok4g128",
    "k=ch2g128,v=tok2g128,window=128",
    "k=hadamard:tok4g32s,v=hadamard:tok4g32s,sink=4",
    "k=ch2g32,v=tok2g32,sink=4,window=256",
    "k=ch4g128,v=tok4g128,prefill=512,sink=1",
    "k=ch4g128,v=tok4g128,prefill=all,window=128",
    "k=tok8g32s,v=tok3g64,k@1=ch4g64,v@0.1=bf16,sink=128",
    "k=ch4g128,v=tok4g128,sink=4,protect=0.05,tail=tok8g32s",
    "k=prog4,v=prog4,sink=4,tail=int8",
    "k=hadamard:tcq2,v=tcq2,sink=4,encode=shaped",
};

class CacheOfRecipe : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Recipes, CacheOfRecipe, ::testing::ValuesIn(kRecipes));

TEST_P(CacheOfRecipe, HoldsTheSameBytesForAnyChunking) {
  const auto plan = plan_for(GetParam(), small_geometry());
  constexpr int kTokens = 700;
  Cache whole(plan, 0);
  const SequenceId expected = whole.add();
  ASSERT_TRUE(append_tokens(whole, expected, kTokens).ok());
  for (const int chunk : {1, 128, 200, 512}) {
    Cache cache(plan, 0);
    const SequenceId s = cache.add();
    for (int done = 0; done < kTokens; done += chunk) {
      ASSERT_TRUE(append_tokens(cache, s, std::min(chunk, kTokens - done)).ok());
    }
    EXPECT_EQ(contents(cache, s), contents(whole, expected)) << "chunks of " << chunk;
  }
}

// Each page is encoded in the metric of its own position.
TEST(Cache, ShapesErrorsOfKByThePlaceOfThePage) {
  const auto plan = plan_for("k=hadamard:tcq2,v=tcq2,tail=bf16,encode=shaped", small_geometry());
  const SidePlan& keys = plan->head(1, 1).k;
  Cache cache(plan, 0);
  const SequenceId s = cache.add();
  ASSERT_TRUE(append_tokens(cache, s, 4 * kPageTokens).ok());
  std::vector<PageView> pages;
  head_of(cache, s, 1, 1).list_pages(0, pages);
  ASSERT_GE(head_of(cache, s, 1, 1).n_sealed(), 3);
  for (int page = 0; page < 3; ++page) {
    std::vector<float> rows;
    for (int t = page * kPageTokens; t < (page + 1) * kPageTokens; ++t) {
      std::vector<float> row = testing::token_values(1, 1, 0, t, 64);
      keys.transform.forward({row.data(), 1, 64});
      for (const float x : row) rows.push_back(float_from_bf16(bf16_from_float(x)));
    }
    const auto metric = metric_of_page(keys.context.constants, keys.transform, 64, page * kPageTokens);
    PageContext context = keys.context;
    context.metric = &*metric;
    std::vector<std::byte> expected(keys.sealed->page_bytes(64));
    keys.sealed->encode(rows.data(), {}, context, expected.data());
    EXPECT_EQ(std::memcmp(expected.data(), pages[page].k.bytes, expected.size()), 0) << page;
  }
}

TEST_P(CacheOfRecipe, SealsAsVisibilityDemands) {
  const auto plan = plan_for(GetParam(), small_geometry());
  Cache cache(plan, 0);
  const SequenceId s = cache.add();
  ASSERT_TRUE(append_tokens(cache, s, 300).ok());
  // In decoding, token t sees page j sealed if and only if t >= 128 (j + 1) + window.
  for (int t = 300; t < 700; ++t) {
    ASSERT_TRUE(append_tokens(cache, s, 1, false).ok());
    const int seen_by_next = std::max(0, (t + 1 - plan->recipe.window) / kPageTokens);
    EXPECT_EQ(head_of(cache, s, 1, 0).n_sealed(), seen_by_next) << "after token " << t;
  }
}

// Steps of one decoded token encode pages before they are due, but larger steps do not. Both must store equal
// bytes.
TEST_P(CacheOfRecipe, SealsTheSameBytesAheadOfTime) {
  const auto plan = plan_for(GetParam(), small_geometry());
  Cache at_once(plan, 0), cache(plan, 0);
  const SequenceId expected = at_once.add();
  ASSERT_TRUE(append_tokens(at_once, expected, 300).ok());
  ASSERT_TRUE(append_tokens(at_once, expected, 400, false).ok());
  SequenceId s = cache.add();
  ASSERT_TRUE(append_tokens(cache, s, 300).ok());
  const auto decode_until = [&](int end) {
    while (cache.length(s) < end) {
      {
        auto step = cache.reserve({{s, 1, false}});
        ASSERT_TRUE(step.ok());
        for (int layer = 0; layer < 2; ++layer) testing::run_layer_without_attention(**step, layer);
        // The step is dropped without a commit.
      }
      ASSERT_TRUE(append_tokens(cache, s, 1, false).ok());
    }
  };
  decode_until(450);
  if (plan->recipe.window > 0) {  // The cut lies in the tail and is exact.
    ASSERT_TRUE(cache.truncate(s, 380).ok());
    decode_until(450);
  }
  const SequenceId fork = *cache.fork(s);
  decode_until(700);
  EXPECT_EQ(contents(cache, s), contents(at_once, expected));
  s = fork;
  decode_until(700);
  EXPECT_EQ(contents(cache, fork), contents(at_once, expected));
}

TEST(Cache, EncodesPagesOfDifferentHeadsAtDifferentTokens) {
  const auto plan = plan_for("k=ch2g128,v=tok2g128,window=128", small_geometry());
  Cache cache(plan, 0);
  const SequenceId s = cache.add();
  ASSERT_TRUE(append_tokens(cache, s, 256).ok());
  std::int64_t page_bytes = 0;
  for (const Side side : kSides)
    page_bytes += static_cast<std::int64_t>(plan->head(0, 0).side(side).sealed->page_bytes(64));
  std::vector<int> tokens;  // The tokens at which one of the four heads has encoded.
  std::vector<bool> ahead(4);
  while (cache.length(s) < 384) {
    ASSERT_TRUE(append_tokens(cache, s, 1, false).ok());
    std::vector<std::int64_t> k(4), v(4);
    cache.pages(s).add_side_bytes(k, v);
    for (int i = 0; i < 4; ++i) {
      const HeadState& head = head_of(cache, s, i / 2, i % 2);
      const int unsealed = cache.length(s) - head.n_sealed() * kPageTokens;
      const std::int64_t tail = k[i] + v[i] - head.n_sealed() * page_bytes;
      const bool now = tail > std::int64_t{2} * ((unsealed + 15) / 16) * 16 * 64 * 2;
      if (now && !ahead[i]) tokens.push_back(cache.length(s));
      ahead[i] = now;
    }
  }
  EXPECT_EQ(tokens, (std::vector<int>{256 + 2, 256 + 33, 256 + 65, 256 + 96}));
}

TEST_P(CacheOfRecipe, ForkSharesNothingThatChanges) {
  const auto plan = plan_for(GetParam(), small_geometry());
  Cache cache(plan, 0);
  const SequenceId s = cache.add();
  ASSERT_TRUE(append_tokens(cache, s, 333).ok());
  const std::string before = contents(cache, s);
  const Result<SequenceId> fork = cache.fork(s);
  ASSERT_TRUE(fork.ok());
  EXPECT_EQ(contents(cache, *fork), before);
  ASSERT_TRUE(append_tokens(cache, *fork, 300, false).ok());
  EXPECT_EQ(contents(cache, s), before);
  ASSERT_TRUE(append_tokens(cache, s, 300, false).ok());
  EXPECT_EQ(contents(cache, s), contents(cache, *fork));
  cache.free(s);
  EXPECT_EQ(cache.length(*fork), 633);
  cache.free(*fork);
  EXPECT_EQ(cache.bytes().all(), 0);
}

TEST_P(CacheOfRecipe, TruncationInTheTailIsExact) {
  const auto plan = plan_for(GetParam(), small_geometry());
  Cache cache(plan, 0);
  const SequenceId s = cache.add(), t = cache.add();
  ASSERT_TRUE(append_tokens(cache, s, 640).ok());
  ASSERT_TRUE(append_tokens(cache, s, 30).ok());
  ASSERT_TRUE(append_tokens(cache, t, 650).ok());
  ASSERT_TRUE(cache.truncate(s, 650).ok());
  EXPECT_EQ(contents(cache, s), contents(cache, t));
}

TEST_P(CacheOfRecipe, TruncationIntoASealedPageKeepsProtectedTokensAndGoesOn) {
  const auto plan = plan_for(GetParam(), small_geometry());
  Cache cache(plan, 0);
  const SequenceId s = cache.add(), exact = cache.add();
  ASSERT_TRUE(append_tokens(cache, s, 640).ok());
  ASSERT_TRUE(append_tokens(cache, s, 1, false)
                  .ok());  // The token ends the prompt and seals the pages that its blocks kept.
  const Result<SequenceId> other = cache.fork(s);
  ASSERT_TRUE(cache.truncate(s, 100).ok());
  EXPECT_EQ(cache.length(s), 100);
  EXPECT_EQ(cache.length(*other), 641);
  ASSERT_TRUE(append_tokens(cache, exact, 100).ok());
  std::vector<PageView> pages, exact_pages;
  head_of(cache, s, 0, 0).list_pages(0, pages);
  head_of(cache, exact, 0, 0).list_pages(0, exact_pages);
  ASSERT_EQ(pages.size(), 1U);
  const int sink = std::min(100, plan->layers[0].sink);
  std::vector<float> values(kPageTokens * 64), exact_values(kPageTokens * 64);
  pages[0].k.format->decode(pages[0].k.bytes, 100, *pages[0].k.context, values.data());
  exact_pages[0].k.format->decode(exact_pages[0].k.bytes, 100, *pages[0].k.context, exact_values.data());
  for (int i = 0; i < sink * 64; ++i) ASSERT_EQ(values[i], exact_values[i]);
  double error = 0, power = 0;
  for (int i = 0; i < 100 * 64; ++i) {
    error += std::pow(values[i] - exact_values[i], 2);
    power += std::pow(exact_values[i], 2);
  }
  EXPECT_LT(error, 0.4 * power);
  ASSERT_TRUE(append_tokens(cache, s, 600).ok());
  EXPECT_EQ(cache.length(s), 700);
}

TEST_P(CacheOfRecipe, AbortLeavesEverySequenceAsItWas) {
  const auto plan = plan_for(GetParam(), small_geometry());
  Cache cache(plan, 0);
  const SequenceId a = cache.add(), b = cache.add();
  ASSERT_TRUE(append_tokens(cache, a, 250).ok());
  ASSERT_TRUE(append_tokens(cache, b, 385).ok());
  const std::string before_a = contents(cache, a), before_b = contents(cache, b);
  const std::int64_t bytes = cache.bytes().all();
  {
    auto step = cache.reserve({{a, 600, true}, {b, 1, false}});
    ASSERT_TRUE(step.ok());
    for (int layer = 0; layer < 2; ++layer) testing::run_layer_without_attention(**step, layer);
    // The step is dropped without a commit.
  }
  EXPECT_EQ(contents(cache, a), before_a);
  EXPECT_EQ(contents(cache, b), before_b);
  EXPECT_EQ(cache.bytes().all(), bytes);
  ASSERT_TRUE(append_tokens(cache, a, 600).ok());
  Cache fresh(plan, 0);
  const SequenceId c = fresh.add();
  ASSERT_TRUE(append_tokens(fresh, c, 850).ok());
  EXPECT_EQ(contents(cache, a), contents(fresh, c));
}

TEST_P(CacheOfRecipe, AFailedStepReportsTheFirstErrorAndAborts) {
  const auto plan = plan_for(GetParam(), small_geometry());
  Cache cache(plan, 0);
  const SequenceId s = cache.add();
  auto step = cache.reserve({{s, 200, true}});
  ASSERT_TRUE(step.ok());
  for (int layer = 0; layer < 2; ++layer) testing::run_layer_without_attention(**step, layer);
  (*step)->fail(Error{"first"});
  (*step)->fail(Error{"second"});
  const Status status = (*step)->commit();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message, "first");
  EXPECT_EQ(cache.length(s), 0);
  EXPECT_EQ(cache.bytes().all(), 0);
}

TEST_P(CacheOfRecipe, RunningOutOfBudgetLeavesTheSequenceAsItWas) {
  const auto plan = plan_for(GetParam(), small_geometry());
  Cache sizing(plan, 0);
  const SequenceId s = sizing.add();
  ASSERT_TRUE(append_tokens(sizing, s, 1500).ok());
  Cache cache(plan, sizing.bytes_reserved() / 2);
  const SequenceId t = cache.add();
  std::string before = contents(cache, t);
  Status status;
  while (status.ok() && cache.length(t) < 1500) {
    before = contents(cache, t);
    status = append_tokens(cache, t, 100);
  }
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("out of memory"), std::string::npos);
  EXPECT_EQ(contents(cache, t), before);
  EXPECT_LE(cache.bytes_reserved(), sizing.bytes_reserved() / 2);
}

// A caller's mistake must give an error that leaves the cache unchanged, and must never end the program.
TEST(Cache, RefusesSequencesThatItDoesNotHold) {
  Cache cache(plan_for("k=ch4g128,v=tok4g128", small_geometry()), 0);
  const SequenceId s = cache.add();
  ASSERT_TRUE(append_tokens(cache, s, 200).ok());
  const std::string before = contents(cache, s);
  for (const SequenceId unknown : {s + 1, -1}) {
    EXPECT_FALSE(cache.holds(unknown));
    EXPECT_FALSE(cache.fork(unknown).ok());
    EXPECT_FALSE(cache.truncate(unknown, 0).ok());
    EXPECT_FALSE(cache.checkpoint(unknown).ok());
    EXPECT_FALSE(fill_synthetic(cache, unknown, 10, 1).ok());
    const auto step = cache.reserve({{s, 1, false}, {unknown, 1, false}});
    ASSERT_FALSE(step.ok());
    EXPECT_NE(step.error().message.find("sequence " + std::to_string(unknown)), std::string::npos);
    EXPECT_EQ(cache.length(unknown), 0);
    EXPECT_EQ(cache.bytes(unknown).all(), 0);
    cache.free(unknown);
  }
  EXPECT_EQ(contents(cache, s), before);
  cache.free(s);
  EXPECT_FALSE(cache.fork(s).ok());
}

TEST(Cache, RefusesStepsThatCannotBe) {
  Cache cache(plan_for("k=ch4g128,v=tok4g128", small_geometry()), 0);
  const SequenceId s = cache.add();
  EXPECT_FALSE(cache.reserve({{s, 0, true}}).ok());
  EXPECT_FALSE(cache.reserve({{s, -3, true}}).ok());
  EXPECT_FALSE(cache.reserve({{s, 1, true}, {s, 1, true}}).ok());
  {
    const auto open = cache.reserve({{s, 1, true}});
    ASSERT_TRUE(open.ok());
    EXPECT_FALSE(cache.reserve({{s, 1, true}}).ok());
    EXPECT_FALSE(cache.reserve({}).ok());
    EXPECT_FALSE(cache.fork(s).ok());
    EXPECT_FALSE(cache.truncate(s, 0).ok());
    EXPECT_FALSE(cache.checkpoint(s).ok());
  }
  EXPECT_TRUE(append_tokens(cache, s, 10).ok());
}

TEST(CacheBytes, AreThoseOfTheFormats) {
  // The cache has 2 layers x 2 heads and 1024 tokens of d = 64. ch4g128 has 4.25 bits per value, and
  // tok4g128 (one group of 64, because d < 128) has 4.5 bits per value.
  Cache cache(plan_for("k=ch4g128,v=tok4g128", small_geometry()), 0);
  const SequenceId s = cache.add();
  ASSERT_TRUE(append_tokens(cache, s, 1024).ok());
  const CacheBytes b = cache.bytes(s);
  EXPECT_EQ(b.tail, 0);
  EXPECT_EQ(b.sealed, 2 * 2 * 1024 * 64 * (17 + 18) / 4 / 8);
  EXPECT_DOUBLE_EQ(b.bits_sealed(), (4.25 + 4.5) / 2);
  EXPECT_DOUBLE_EQ(b.bits_all(), b.bits_sealed());
}

TEST(CacheBytes, CountSinkWindowAndTail) {
  Cache cache(plan_for("k=ch4g128,v=ch4g128,sink=4,window=256", small_geometry()), 0);
  const SequenceId s = cache.add();
  ASSERT_TRUE(append_tokens(cache, s, 1024).ok());
  const CacheBytes b = cache.bytes(s);
  EXPECT_EQ(b.sink, 2 * 2 * 2 * 4 * 64 * 2);    // layers x heads x sides, 4 rows of 64 x 2 bytes
  EXPECT_EQ(b.tail, 2 * 2 * 2 * 256 * 64 * 2);  // The window stays in the tail.
  EXPECT_EQ(b.sealed_elements, 2 * 2 * 2 * 768 * 64);
  EXPECT_NEAR(b.bits_sealed(), 4.25, 0.02);  // Masks and token lists add some bits.
  EXPECT_NEAR(b.bits_all(), (768 * 4.25 + 256 * 16 + 4 * 16) / 1024, 0.02);
}

TEST(CacheBytes, FallWhenPagesSeal) {
  Cache cache(plan_for("k=ch2g128,v=tok2g128", small_geometry()), 0);
  const SequenceId s = cache.add();
  ASSERT_TRUE(append_tokens(cache, s, 127).ok());
  const std::int64_t unsealed = cache.bytes().all();
  ASSERT_TRUE(append_tokens(cache, s, 1).ok());
  EXPECT_LT(cache.bytes().all(), unsealed / 6);
}

TEST(CacheBytes, OfForksCountSharedPagesOnce) {
  Cache cache(plan_for("k=ch4g128,v=ch4g128", small_geometry()), 0);
  const SequenceId s = cache.add();
  ASSERT_TRUE(append_tokens(cache, s, 1024).ok());
  const std::int64_t one = cache.bytes().all();
  ASSERT_TRUE(cache.fork(s).ok());
  EXPECT_EQ(cache.bytes().all(), one);
}

TEST(CacheBytes, OfForksCountProtectedTokensAndSumsOnce) {
  for (const char* recipe :
       {"k=ch4g128,v=tok2g128,sink=4,protect=0.05,window=128", "k=ch4g128,v=tok2g128,evict=0.25,window=128",
        "k=ch2g128,v=tok2g128,sink=4,correction=relative"}) {
    Cache cache(plan_for(recipe, small_geometry()), 0);
    const SequenceId s = cache.add();
    ASSERT_TRUE(fill_synthetic(cache, s, 1024, 1).ok());
    const CacheBytes one = cache.bytes();
    EXPECT_GT(one.protected_tokens, 0) << recipe;
    const SequenceId fork = *cache.fork(s);
    EXPECT_EQ(cache.bytes().all(), one.all()) << recipe;
    EXPECT_EQ(cache.bytes(fork).all(), one.all()) << recipe;
  }
}

// A fork that continues takes memory for its own tail only.
TEST(CacheBytes, OfManyForksAreOnePrefixAndTheirTails) {
  constexpr int kPrefix = 16384, kForks = 64;
  for (const char* recipe : {"kvant-4bit", "kvant-2bit", "k=ch4g128,v=tok4g128,window=128"}) {
    Cache cache(plan_for(recipe, small_geometry()), 0);
    const SequenceId prefix = cache.add();
    ASSERT_TRUE(fill_synthetic(cache, prefix, kPrefix, 1).ok());
    const CacheBytes one = cache.bytes();
    const std::int64_t reserved = cache.bytes_reserved();
    std::vector<SequenceId> forks;
    for (int i = 0; i < kForks; ++i) forks.push_back(*cache.fork(prefix));
    EXPECT_EQ(cache.bytes().all(), one.all()) << recipe << ": forks that have not gone on";
    std::int64_t own = 0;
    for (int i = 0; i < kForks; ++i) {
      const std::int64_t before = cache.bytes(forks[i]).all();
      ASSERT_TRUE(append_tokens(cache, forks[i], 1 + i % 40).ok());
      own += cache.bytes(forks[i]).all() - before;
    }
    const CacheBytes all = cache.bytes();
    EXPECT_EQ(all.all(), one.all() + own) << recipe;
    EXPECT_EQ(all.sealed, one.sealed) << recipe;
    EXPECT_LE(own, kForks * std::int64_t{2 * 2 * 2 * 64 * 2} * 48)
        << recipe;  // The bound is 48 tokens in 16 bits.
    EXPECT_LE(cache.bytes_reserved(), reserved + own + own / 4 + (16 << 17))
        << recipe;  // Memory comes in whole slabs.
    for (const SequenceId fork : forks) cache.free(fork);
    EXPECT_EQ(cache.bytes().all(), one.all()) << recipe;
  }
}

TEST(SlidingWindow, FreesPagesOlderThanItAndKeepsNoSink) {
  Geometry g = small_geometry();
  g.sliding_window = {200, 0};
  Cache cache(plan_for("k=ch4g128,v=tok4g128,sink=4", g), 0);
  const SequenceId s = cache.add();
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(append_tokens(cache, s, 128).ok());
  // The next query, token 1280, sees tokens 1081 and later, so page 8 is the first page needed.
  EXPECT_EQ(head_of(cache, s, 0, 0).first_page(), 8);
  EXPECT_EQ(head_of(cache, s, 1, 0).first_page(), 0);
  EXPECT_EQ(head_of(cache, s, 0, 0).chosen().tokens.size(), 0U);
  EXPECT_EQ(head_of(cache, s, 1, 0).chosen().tokens.size(), 4U);
}

constexpr const char* kCorrected = "k=ch2g128,v=tok2g128,sink=4,correction=relative";

TEST(Checkpoint, BringsBackWhatACorrectionHadSummedUp) {
  const auto plan = plan_for(kCorrected, small_geometry());
  Cache cache(plan, 0);
  const SequenceId s = cache.add(), never_longer = cache.add();
  for (const SequenceId id : {s, never_longer}) ASSERT_TRUE(append_tokens(cache, id, 384).ok());
  ASSERT_TRUE(append_tokens(cache, s, 30).ok());
  const std::int64_t lists = cache.bytes(s).protected_tokens;
  ASSERT_TRUE(cache.checkpoint(s).ok());
  EXPECT_EQ(cache.bytes(s).protected_tokens, lists);
  ASSERT_TRUE(append_tokens(cache, s, 500).ok());
  // The sequence now has sums of its own, besides the sums of the checkpoint.
  EXPECT_EQ(cache.bytes(s).protected_tokens,
            lists + plan->geometry.n_all_kv_heads() * correction_bytes(plan->geometry.head_dim));
  const SequenceId fork = *cache.fork(s);
  for (const SequenceId id : {s, fork}) {
    ASSERT_TRUE(cache.truncate(id, 384).ok());
    EXPECT_EQ(contents(cache, id), contents(cache, never_longer));
    ASSERT_TRUE(append_tokens(cache, id, 500).ok());
    ASSERT_TRUE(cache.truncate(id, 384).ok());  // The second cut must give equal contents.
    EXPECT_EQ(contents(cache, id), contents(cache, never_longer));
  }
}

TEST(Checkpoint, IsNeededBeforeACutThatACorrectionWouldHaveToForgetPagesFor) {
  Cache cache(plan_for(kCorrected, small_geometry()), 0);
  const SequenceId s = cache.add();
  ASSERT_TRUE(append_tokens(cache, s, 400).ok());
  EXPECT_FALSE(cache.truncate(s, 300).ok());
  ASSERT_TRUE(cache.checkpoint(s).ok());
  ASSERT_TRUE(append_tokens(cache, s, 400).ok());
  const std::string before = contents(cache, s);
  EXPECT_FALSE(cache.truncate(s, 383).ok());  // The cut lies in a page that the checkpoint has summed up.
  EXPECT_EQ(contents(cache, s), before);
  EXPECT_TRUE(cache.truncate(s, 600).ok());
  EXPECT_TRUE(cache.truncate(s, 0).ok());
  ASSERT_TRUE(append_tokens(cache, s, 600).ok());
  EXPECT_FALSE(cache.truncate(s, 400).ok());  // The checkpoint went with the tokens.
}

TEST(SlidingWindow, RefusesATruncationThatNeedsFreedPages) {
  Geometry g = small_geometry();
  g.sliding_window = {200, 0};
  Cache cache(plan_for("k=ch4g128,v=tok4g128", g), 0);
  const SequenceId s = cache.add();
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(append_tokens(cache, s, 128).ok());
  const std::string before = contents(cache, s);
  EXPECT_FALSE(cache.truncate(s, 1100).ok());
  EXPECT_FALSE(cache.truncate(s, 5000).ok());
  EXPECT_EQ(contents(cache, s), before);
  EXPECT_TRUE(cache.truncate(s, 1270).ok());
  EXPECT_TRUE(cache.truncate(s, 0).ok());
  EXPECT_TRUE(append_tokens(cache, s, 300).ok());
}

TEST(SyntheticContents, LookLikeARealSequence) {
  Cache cache(plan_for("k=ch4g128,v=tok4g128,sink=4,window=128", small_geometry()), 0);
  const SequenceId s = cache.add(), real = cache.add();
  ASSERT_TRUE(fill_synthetic(cache, s, 1000, 1).ok());
  ASSERT_TRUE(append_tokens(cache, real, 1000).ok());
  EXPECT_EQ(cache.length(s), 1000);
  EXPECT_EQ(cache.bytes(s).all(), cache.bytes(real).all());
  EXPECT_TRUE(append_tokens(cache, s, 1, false).ok());
}

TEST(SyntheticContents, AreSealedPageByPageWhateverThePromptBlocks) {
  for (const char* prefill : {"512", "all"}) {
    Cache cache(plan_for(std::string("k=ch4g128,v=tok4g128,prefill=") + prefill, small_geometry()), 0);
    const SequenceId s = cache.add();
    ASSERT_TRUE(fill_synthetic(cache, s, 1000, 1).ok());
    EXPECT_EQ(head_of(cache, s, 0, 0).n_sealed(), 7) << prefill;
  }
}

TEST(SyntheticContents, ProtectTheStatedShareOfSealedTokens) {
  for (const double rho : {0.01, 0.05, 0.1}) {
    Cache cache(plan_for(fmt::format("k=ch4g128,v=tok2g128,window=128,protect={}", rho), small_geometry()),
                0);
    const SequenceId s = cache.add();
    ASSERT_TRUE(fill_synthetic(cache, s, 6000, 1).ok());
    const HeadState& head = head_of(cache, s, 0, 0);
    std::vector<PageView> pages;
    head.list_pages(0, pages);
    int protected_set = 0, masked = 0, pages_with_some = 0;
    for (const PageView& page : pages) {
      if (page.is_protected) {
        protected_set += page.n_tokens;
      } else {
        masked += page.masked.count();
        pages_with_some += page.masked.empty() ? 0 : 1;
      }
    }
    const int sealed = head.n_sealed() * kPageTokens;
    EXPECT_EQ(protected_set, masked);
    EXPECT_LE(protected_set, std::ceil(rho * sealed));
    EXPECT_GE(protected_set, 0.95 * rho * sealed) << rho;
    EXPECT_GE(pages_with_some, std::min(0.9, rho * 90) * head.n_sealed())
        << rho;  // Protected tokens are spread over all pages.
  }
}

}  // namespace
}  // namespace kvant
