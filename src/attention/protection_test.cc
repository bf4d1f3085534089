// Compares protection (VQuant section 5) with its definition in double precision. The tests check which
// tokens are chosen, that chosen tokens stay exact, and that they widen no range of their page.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "attention/graded_tokens.h"

namespace kvant::protection_test {
namespace {

using testing::attend_in_chunks;
using testing::attend_tokens;
using testing::kKeyRows;
using testing::kValueRows;
using testing::plan_for;
using testing::graded::geometry;
using testing::graded::kOutlier;
using testing::graded::kSize;
using testing::graded::kTokens;
using testing::graded::level;
using testing::graded::values_of;

struct Rules {
  double rho;
  int window, sink;
};

// Returns the protected tokens after n tokens, a multiple of kPageTokens, by the definition. A token's
// vertical score sums the weights that the last 64 queries of each page gave it, over all heads. The sum is
// divided by the number of these queries that could see the token. When a page is sealed, its tokens compete
// with all n tokens up to the page's end. A token is protected if it is among the best floor(rho n), within
// the cap of ceil(rho x sealed tokens).
std::set<int> protected_by_definition(int kv_head, int n, const Rules& rules) {
  testing::graded::VerticalScores scores(kv_head);
  std::set<int> chosen;
  for (int t = 0; t < rules.sink && n >= kPageTokens + rules.window; ++t) chosen.insert(t);
  int beyond_sink = 0;
  for (int end = kPageTokens; end <= n; end += kPageTokens) {
    scores.end_page(end);
    // `page` is the page that is sealed at length `end`.
    const int page = (end - rules.window) / kPageTokens - 1;
    if (page < 0) continue;
    const int page_end = (page + 1) * kPageTokens;
    std::vector<int> order(page_end);
    std::iota(order.begin(), order.end(), 0);
    const auto n_best = static_cast<int>(std::floor(rules.rho * page_end));
    scores.sort(order, n_best);
    const auto cap = static_cast<int>(std::ceil(rules.rho * page_end));
    for (int i = 0; i < n_best && beyond_sink < cap; ++i) {
      if (order[i] < page_end - kPageTokens || order[i] < rules.sink) continue;
      chosen.insert(order[i]);
      ++beyond_sink;
    }
  }
  return chosen;
}

std::set<int> protected_by_cache(const HeadState& head) {
  std::vector<PageView> pages;
  head.list_pages(0, pages);
  std::set<int> protected_set, masked;
  for (const PageView& page : pages) {
    for (int t = 0; t < page.n_tokens; ++t) {
      if (page.is_protected) {
        EXPECT_TRUE(protected_set.insert(page.protected_tokens[t]).second);
      } else if (page.masked.test(t)) {
        masked.insert(page.first_token + t);
      }
    }
  }
  EXPECT_EQ(protected_set, masked);
  return protected_set;
}

// K is bf16, so the definition needs no decoded keys.
std::string recipe(const Rules& rules) {
  return fmt::format("k=bf16,v=tok2g128,protect={},window={},sink={}", rules.rho, rules.window, rules.sink);
}

constexpr Rules kRules[] = {{0.05, 128, 0}, {0.05, 0, 4}, {0.01, 256, 4}, {0.1, 128, 128}};

TEST(Protection, ChoosesTheTokensOfTheDefinition) {
  for (const Rules& rules : kRules) {
    Cache cache(plan_for(recipe(rules), geometry()), 0);
    const SequenceId s = cache.add();
    attend_tokens(cache, s, 768, true, values_of);
    for (int head = 0; head < 2; ++head) {
      const auto chosen = protected_by_cache(head_of(cache, s, 0, head));
      EXPECT_EQ(chosen, protected_by_definition(head, 768, rules)) << recipe(rules);
      const int sealed = 768 - rules.window;
      EXPECT_LE(static_cast<int>(chosen.size()), std::ceil(rules.rho * sealed) + rules.sink);
      EXPECT_GT(static_cast<int>(chosen.size()), rules.rho * sealed / 3);
    }
  }
}

// Compares the protected tokens of both heads after each chunk of several.
TEST(Protection, ChoosesTheSameForAnyChunkingAndInForks) {
  const Rules rules{0.05, 128, 4};
  const auto plan = plan_for(recipe(rules), geometry());
  const auto expected = [&](int head) { return protected_by_definition(head, 768, rules); };
  for (const int chunk : {1, 128, 200, 512, 800}) {
    for (const bool is_prompt : {true, false}) {
      Cache cache(plan, 0);
      const SequenceId s = attend_in_chunks(cache, 800, chunk, is_prompt, values_of);
      for (int head = 0; head < 2; ++head) {
        EXPECT_EQ(protected_by_cache(head_of(cache, s, 0, head)), expected(head)) << "chunks of " << chunk;
      }
    }
  }
}

TEST(Protection, DoesNotDependOnTheNumberOfThreads) {
  const auto plan = plan_for("k=ch4g128,v=tok2g128,protect=0.05,window=128", geometry());
  std::string contents[2];
  for (const int n_threads : {1, 3}) {
    Cache cache(plan, 0);
    const SequenceId s = cache.add();
    const auto backend = make_reference_backend();
    auto step = cache.reserve({{s, 700, true}});
    testing::run_step(**step, values_of, *backend, n_threads);
    ASSERT_TRUE((*step)->commit().ok());
    contents[n_threads > 1] = testing::contents(cache, s);
  }
  EXPECT_EQ(contents[0], contents[1]);
}

TEST(Protection, NeverDemotes) {
  Cache cache(plan_for(recipe({0.05, 128, 4}), geometry()), 0);
  const SequenceId s = cache.add();
  std::set<int> before;
  for (int i = 0; i < 7; ++i) {
    attend_tokens(cache, s, 128, true, values_of);
    const auto now = protected_by_cache(head_of(cache, s, 0, 0));
    EXPECT_TRUE(std::includes(now.begin(), now.end(), before.begin(), before.end()));
    before = now;
  }
  EXPECT_GT(before.size(), 20U);
}

TEST(Protection, KeepsRowsExactAndLeavesThemOutOfRanges) {
  const auto plan = plan_for("k=ch4g128,v=tok2g128,protect=0.1,window=128", geometry());
  Cache cache(plan, 0);
  const SequenceId s = cache.add();
  attend_tokens(cache, s, 768, true, values_of);
  std::vector<PageView> pages;
  const HeadState& head = head_of(cache, s, 0, 1);
  head.list_pages(0, pages);
  std::vector<float> values(kPageTokens * kSize);
  int n_protected = 0, n_outliers = 0;
  for (const PageView& page : pages) {
    for (const int kind : {kKeyRows, kValueRows}) {
      const PageSide& side = kind == kKeyRows ? page.k : page.v;
      side.format->decode(side.bytes, page.n_tokens, *side.context, values.data());
      for (int t = 0; t < page.n_tokens; ++t) {
        const int token = page.is_protected ? page.protected_tokens[t] : page.first_token + t;
        const auto exact = values_of(0, 1, kind, token);
        if (page.is_protected) {
          ++n_protected;
          for (int c = 0; c < kSize; ++c) {
            ASSERT_EQ(values[t * kSize + c], testing::rounded_to_bf16(exact[c]));
          }
        } else if (kind == kKeyRows && token < head.n_sealed() * kPageTokens && !page.masked.test(t)) {
          // Every token with an outlier is protected and left out of its page's range. One unprotected
          // outlier of 999 would raise the step of 4-bit codes to 999 / 15.
          ASSERT_NEAR(values[t * kSize + kOutlier], 1.0F, 0.01F) << token;
        }
      }
    }
  }
  for (int t = 0; t < 640; ++t) n_outliers += level(1, t) > kTokens - 40 ? 1 : 0;
  EXPECT_GT(n_outliers, 10);
  EXPECT_EQ(n_protected, 2 * static_cast<int>(protected_by_cache(head).size()));
}

TEST(Protection, AnAbortRestoresScoresAndObservers) {
  const auto plan = plan_for(recipe({0.05, 128, 4}), geometry());
  for (const int first : {70, 300, 330, 384}) {
    for (const int n : {1, 40, 400}) {
      Cache cache(plan, 0), fresh(plan, 0);
      const SequenceId s = cache.add(), t = fresh.add();
      attend_tokens(cache, s, first, true, values_of);
      attend_tokens(fresh, t, first, true, values_of);
      const std::string before = testing::contents(cache, s);
      const std::int64_t bytes = cache.bytes(s).all();
      {
        auto step = cache.reserve({{s, n, true}});
        const auto backend = make_reference_backend();
        testing::run_step(**step, values_of, *backend);
      }
      EXPECT_EQ(testing::contents(cache, s), before) << first << "+" << n;
      EXPECT_EQ(cache.bytes(s).all(), bytes);
      attend_tokens(cache, s, 400, true, values_of);
      attend_tokens(fresh, t, 400, true, values_of);
      EXPECT_EQ(testing::contents(cache, s), testing::contents(fresh, t)) << first << "+" << n;
    }
  }
}

TEST(Protection, ATruncationWithinTheOpenPageIsExact) {
  const auto plan = plan_for(recipe({0.05, 128, 4}), geometry());
  Cache cache(plan, 0), fresh(plan, 0);
  const SequenceId s = cache.add(), t = fresh.add();
  attend_tokens(cache, s, 500, true, values_of);
  // Page 3 is open, and its observing queries begin at token 448.
  ASSERT_TRUE(cache.truncate(s, 470).ok());
  attend_tokens(fresh, t, 470, true, values_of);
  EXPECT_EQ(testing::contents(cache, s), testing::contents(fresh, t));
  for (Cache* c : {&cache, &fresh}) attend_tokens(*c, 0, 400, true, values_of);
  for (int head = 0; head < 2; ++head) {
    EXPECT_EQ(protected_by_cache(head_of(cache, s, 0, head)), protected_by_cache(head_of(fresh, t, 0, head)));
  }
}

TEST(Protection, ATruncationIntoEarlierPagesKeepsWhatIsSealedAndGoesOn) {
  const auto plan = plan_for(recipe({0.05, 128, 4}), geometry());
  Cache cache(plan, 0);
  const SequenceId s = cache.add();
  attend_tokens(cache, s, 800, true, values_of);
  // The cuts are in a complete page of the tail, in sealed pages, and at the start.
  for (const int cut : {766, 600, 333, 100, 0}) {
    std::set<int> expected = protected_by_cache(head_of(cache, s, 0, 0));
    expected.erase(expected.lower_bound(std::min(cut, head_of(cache, s, 0, 0).n_sealed() * kPageTokens) /
                                        kPageTokens * kPageTokens),
                   expected.end());
    ASSERT_TRUE(cache.truncate(s, cut).ok());
    EXPECT_EQ(protected_by_cache(head_of(cache, s, 0, 0)), expected);
    attend_tokens(cache, s, 800 - cut, true, values_of);
    const auto chosen = protected_by_cache(head_of(cache, s, 0, 0));
    EXPECT_TRUE(std::includes(chosen.begin(), chosen.end(), expected.begin(), expected.end()));
    EXPECT_LE(chosen.size(), std::ceil(0.05 * 640) + 4);
    EXPECT_GT(chosen.size(), 0.05 * 640 / 2);
  }
  EXPECT_EQ(protected_by_cache(head_of(cache, s, 0, 0)), protected_by_definition(0, 768, {0.05, 128, 4}));
}

// A mean of K shifts all scores, and a soft cap is not shift-invariant. Observing queries must therefore add
// the shift that ordinary queries add.
TEST(Protection, WeighsAsTheQueriesDidUnderASoftCap) {
  Geometry g = geometry();
  g.score_softcap = 5;
  auto constants = std::make_shared<Constants>();
  for (int head = 0; head < 2; ++head)
    constants->set(0, head, Side::key, "mean", std::vector<float>(kSize, 0.5F));
  const auto plain = plan_for("k=bf16,v=tok2g128,protect=0.05,window=128", g);
  const auto shifted = plan_for("k=mean:bf16,v=tok2g128,protect=0.05,window=128", g, constants);
  Cache a(plain, 0), b(shifted, 0);
  a.add();
  b.add();
  attend_tokens(a, 0, 640, true, values_of);
  attend_tokens(b, 0, 640, true, values_of);
  for (int head = 0; head < 2; ++head) {
    const TokenScores& expected = *head_of(a, 0, 0, head).scores();
    const TokenScores& scores = *head_of(b, 0, 0, head).scores();
    for (int t = 0; t < 640; ++t) ASSERT_NEAR(scores.score(t), expected.score(t), 3e-3 * expected.score(t));
  }
}

}  // namespace
}  // namespace kvant::protection_test
