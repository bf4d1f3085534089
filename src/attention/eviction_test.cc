// Compares eviction (H2O; KVLinC section 4) with its definition in double precision. The tests check which
// tokens are dropped, that attention is the softmax over the remaining tokens, and which bytes are freed.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "attention/graded_tokens.h"

namespace kvant::eviction_test {
namespace {

using testing::attend_in_chunks;
using testing::attend_tokens;
using testing::kKeyRows;
using testing::kQueryRows;
using testing::kValueRows;
using testing::plan_for;
using testing::graded::geometry;
using testing::graded::values_of;

struct Rules {
  double share;
  int window, sink;
};

std::string recipe(const Rules& rules) {
  return fmt::format("k=bf16,v=bf16,evict={},window={},sink={}", rules.share, rules.window, rules.sink);
}

// Returns the tokens that the definition drops. Whenever a page is sealed, the sealed tokens with the lowest
// vertical scores are dropped until floor(share x sealed tokens) are gone. The sink is never dropped. n must
// be a multiple of kPageTokens.
std::set<int> evicted_by_definition(int kv_head, int n, const Rules& rules) {
  testing::graded::VerticalScores scores(kv_head);
  std::set<int> gone;
  for (int end = kPageTokens; end <= n; end += kPageTokens) {
    scores.end_page(end, gone);
    const int sealed = std::max(0, (end - rules.window) / kPageTokens * kPageTokens);
    std::vector<int> left;
    for (int t = rules.sink; t < sealed; ++t) {
      if (!gone.contains(t)) left.push_back(t);
    }
    const int due = static_cast<int>(rules.share * sealed) - static_cast<int>(gone.size());
    const int n_left = std::max(0, static_cast<int>(left.size()) - std::max(due, 0));
    scores.sort(left, n_left);
    gone.insert(left.begin() + n_left, left.end());
  }
  return gone;
}

// Returns the tokens that no page view shows.
std::set<int> evicted_by_cache(const HeadState& head) {
  std::vector<PageView> pages;
  head.list_pages(0, pages);
  std::set<int> gone;
  for (int t = 0; t < head.length(); ++t) gone.insert(t);
  for (const PageView& page : pages) {
    for (int t = 0; t < page.n_tokens; ++t) {
      if (page.is_protected || !page.masked.test(t))
        gone.erase(page.is_protected ? page.protected_tokens[t] : page.first_token + t);
    }
  }
  return gone;
}

// Returns the attention of query `t` to the tokens up to t except `gone`, with K and V in BF16.
std::vector<double> attention_without(const testing::RowSource& source, const Geometry& g, int head, int t,
                                      const std::set<int>& gone) {
  const int kv_head = head / g.group(0);
  const auto stored = [&](int kind, int token) {
    auto row = source(0, kv_head, kind, token);
    std::transform(row.begin(), row.end(), row.begin(), testing::rounded_to_bf16);
    return row;
  };
  const auto q = source(0, head, kQueryRows, t);
  std::vector<int> left;
  std::vector<double> scores, out(g.head_dim, 0.0);
  for (int j = 0; j <= t; ++j) {
    if (gone.contains(j)) continue;
    left.push_back(j);
    scores.push_back(testing::dot(q.data(), stored(kKeyRows, j).data(), g.head_dim) * g.softmax_scale);
  }
  const auto weights = testing::softmax_in_double(scores);
  for (std::size_t i = 0; i < left.size(); ++i) {
    const auto v = stored(kValueRows, left[i]);
    for (int c = 0; c < g.head_dim; ++c) out[c] += weights[i] * v[c];
  }
  return out;
}

void expect_near(const float* row, const std::vector<double>& expected) {
  for (std::size_t c = 0; c < expected.size(); ++c) EXPECT_NEAR(row[c], expected[c], 2e-5);
}

constexpr Rules kRules[] = {{0.52, 0, 0}, {0.5, 128, 4}, {0.31, 256, 0}, {0.9, 128, 128}, {1, 128, 4}};

TEST(Eviction, DropsTheTokensOfTheDefinition) {
  for (const Rules& rules : kRules) {
    Cache cache(plan_for(recipe(rules), geometry()), 0);
    const SequenceId s = cache.add();
    attend_tokens(cache, s, 768, true, values_of);
    for (int head = 0; head < 2; ++head) {
      const auto gone = evicted_by_cache(head_of(cache, s, 0, head));
      EXPECT_EQ(gone, evicted_by_definition(head, 768, rules)) << recipe(rules);
    }
  }
}

TEST(Eviction, LeavesTheSoftmaxOverExactlyTheOthers) {
  const Geometry g = geometry();
  for (const Rules& rules : kRules) {
    Cache cache(plan_for(recipe(rules), g), 0);
    const SequenceId s = cache.add();
    const auto prompt = attend_tokens(cache, s, 700, true, values_of);
    const auto decoded = attend_tokens(cache, s, 1, false, values_of);
    for (int head = 0; head < g.n_heads; ++head) {
      for (const int t : {100, 390, 639, 699, 700}) {
        const auto gone = evicted_by_definition(head / 2, t / kPageTokens * kPageTokens, rules);
        const float* row = t < 700 ? testing::output_row(prompt[0], g, 0, t, head)
                                   : testing::output_row(decoded[0], g, 700, t, head);
        expect_near(row, attention_without(values_of, g, head, t, gone));
      }
    }
  }
}

TEST(Eviction, DropsTheSameForAnyChunkingAndInForks) {
  const Rules rules{0.5, 128, 4};
  const auto plan = plan_for(recipe(rules), geometry());
  for (const int chunk : {1, 200, 512}) {
    Cache cache(plan, 0);
    const SequenceId s = attend_in_chunks(cache, 800, chunk, true, values_of);
    for (int head = 0; head < 2; ++head) {
      EXPECT_EQ(evicted_by_cache(head_of(cache, s, 0, head)), evicted_by_definition(head, 768, rules))
          << chunk;
    }
  }
}

TEST(Eviction, OfAllLeavesOnlySinkAndWindow) {
  const Geometry g = geometry();
  const std::int64_t row_bytes = 2 * 2 * g.head_dim * g.n_kv_heads;  // bytes of K and V of a token in BF16
  for (const char* formats : {"k=bf16,v=bf16", "k=ch2g128,v=tok2g128", "k=rhadamard:lm4,v=prog4"}) {
    Cache cache(plan_for(fmt::format("{},sink=4,window=128,evict=1", formats), g), 0);
    const SequenceId s = cache.add();
    for (const int n : {300, 468}) attend_tokens(cache, s, n, true, values_of);
    EXPECT_EQ(head_of(cache, s, 0, 0).scores(), nullptr);
    const CacheBytes bytes = cache.bytes(s);
    EXPECT_EQ(bytes.sealed, 0);
    EXPECT_EQ(bytes.sink, 4 * row_bytes);
    EXPECT_EQ(bytes.tail, kPageTokens * row_bytes);
    // Lists of tokens take up to 0.3 bits per value.
    EXPECT_LT(bytes.bits_all(), 16.0 * (4 + kPageTokens) / 768 + 0.3);
    std::set<int> gone;
    for (int t = 4; t < 640; ++t) gone.insert(t);
    EXPECT_EQ(evicted_by_cache(head_of(cache, s, 0, 1)), gone);
  }
}

TEST(Eviction, OfAllButTheProtectedKeepsTheHeavyHitters) {
  Cache all(plan_for("k=bf16,v=bf16,window=128,protect=0.05,evict=1", geometry()), 0);
  Cache none(plan_for("k=bf16,v=bf16,window=128,protect=0.05", geometry()), 0);
  attend_tokens(all, all.add(), 256, true, values_of);
  attend_tokens(none, none.add(), 256, true, values_of);
  EXPECT_EQ(all.bytes(0).sealed, 0);
  std::vector<PageView> pages;
  head_of(none, 0, 0, 0).list_pages(0, pages);
  std::set<int> gone;
  for (int t = 0; t < kPageTokens; ++t) {
    if (!pages[0].masked.test(t)) gone.insert(t);
  }
  EXPECT_GT(gone.size(), 100U);
  EXPECT_LT(gone.size(), 128U);
  EXPECT_EQ(evicted_by_cache(head_of(all, 0, 0, 0)), gone);
}

// Returns values with which no query attends to the tokens of page 1.
std::vector<float> values_with_a_dull_page(int layer, int head, int kind, int token) {
  auto row = values_of(layer, head, kind, token);
  if (kind == kKeyRows && token / kPageTokens == 1) std::fill(row.begin(), row.end(), -1.0F);
  return row;
}

TEST(Eviction, FreesAPageWhenAllItsTokensAreGone) {
  const Geometry g = geometry();
  Cache cache(plan_for("k=bf16,v=bf16,evict=0.5", g), 0);
  const SequenceId s = cache.add();
  const auto backend = make_reference_backend();
  const std::int64_t page_bytes = 2 * 2 * g.head_dim * g.n_kv_heads * kPageTokens;
  attend_tokens(cache, s, 256, true, values_with_a_dull_page, *backend);
  // Half of the tokens of each page are dropped.
  EXPECT_EQ(cache.bytes(s).sealed, 2 * page_bytes);
  const SequenceId fork = *cache.fork(s);
  const std::string before = testing::contents(cache, fork);
  {
    auto step = cache.reserve({{s, 256, true}});
    testing::run_step(**step, values_with_a_dull_page, *backend);
  }
  EXPECT_EQ(testing::contents(cache, s), before) << "an abort";
  attend_tokens(cache, s, 256, true, values_with_a_dull_page, *backend);
  EXPECT_EQ(cache.bytes(s).sealed, 3 * page_bytes);
  EXPECT_EQ(cache.bytes(s).sealed_elements, std::int64_t{2} * 2 * g.head_dim * 512);
  EXPECT_EQ(testing::contents(cache, fork), before) << "a fork";
  // The fork still holds page 1 and shares page 0.
  EXPECT_EQ(cache.bytes().sealed, 4 * page_bytes);
  cache.free(s);
  cache.free(fork);
  EXPECT_EQ(cache.bytes().all(), 0);
}

TEST(Eviction, AnAbortRestoresMasksAndPages) {
  const auto plan = plan_for(recipe({0.5, 128, 4}), geometry());
  const auto backend = make_reference_backend();
  for (const int first : {300, 384, 500}) {
    for (const int n : {1, 40, 300}) {
      Cache cache(plan, 0), fresh(plan, 0);
      const SequenceId s = cache.add(), t = fresh.add();
      attend_tokens(cache, s, first, true, values_of, *backend);
      attend_tokens(fresh, t, first, true, values_of, *backend);
      {
        auto step = cache.reserve({{s, n, true}});
        testing::run_step(**step, values_of, *backend);
      }
      EXPECT_EQ(testing::contents(cache, s), testing::contents(fresh, t)) << first << "+" << n;
      EXPECT_EQ(cache.bytes(s).all(), fresh.bytes(t).all());
      attend_tokens(cache, s, 300, true, values_of, *backend);
      attend_tokens(fresh, t, 300, true, values_of, *backend);
      EXPECT_EQ(testing::contents(cache, s), testing::contents(fresh, t)) << first << "+" << n;
    }
  }
}

TEST(Eviction, CutsAtPagesAndInTheTailOnly) {
  Cache cache(plan_for(recipe({0.5, 128, 4}), geometry()), 0);
  const SequenceId s = cache.add();
  // 512 tokens are sealed.
  attend_tokens(cache, s, 700, true, values_of);
  const std::string before = testing::contents(cache, s);
  const Status refused = cache.truncate(s, 400);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(
      refused.error().message.find("has evicted some of the first 512 for good; cut at a multiple of 128"),
      std::string::npos)
      << refused.error().message;
  EXPECT_EQ(testing::contents(cache, s), before);
  ASSERT_TRUE(cache.truncate(s, 650).ok());
  const auto evicted = evicted_by_cache(head_of(cache, s, 0, 0));
  ASSERT_TRUE(cache.truncate(s, 384).ok());
  std::set<int> expected = evicted;
  expected.erase(expected.lower_bound(384), expected.end());
  EXPECT_EQ(evicted_by_cache(head_of(cache, s, 0, 0)), expected);
  attend_tokens(cache, s, 316, true, values_of);
  EXPECT_EQ(evicted_by_cache(head_of(cache, s, 0, 0)).size(), 256U);
  ASSERT_TRUE(cache.truncate(s, 0).ok());
  attend_tokens(cache, s, 700, true, values_of);
  EXPECT_EQ(testing::contents(cache, s), before);
}

}  // namespace
}  // namespace kvant::eviction_test
