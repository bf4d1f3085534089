#include "cache/step_parts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace kvant {
namespace {

static_assert(parts_of(1, 1) == 1 && parts_of(4, 4) == 2 && parts_of(9, 4) == 4);
static_assert(tail_pages_of(1, 0) == 1 && tail_pages_of(2, 0) == 2 && tail_pages_of(1, 128) == 2);

// Returns how many pages token t sees sealed, by the definition of visibility.
int sealed_for(int t, int window, int n_sealed) {
  int sealed = 0;
  while (128 * (sealed + 1) + window <= t) ++sealed;
  return std::max(sealed, n_sealed);
}
bool sees(int t, int other, int sliding_window) {
  return other <= t && (sliding_window == 0 || t - other < sliding_window);
}

// Says what a query sees of each token by its part: sealed ('s'), in the tail ('t') or not at all ('.'). The
// function reads the part as the decode kernel reads sealed_pages, tail_tokens and first_tokens of several
// queries (kvant.h).
std::string seen_in(const StepPart& part, int query, int n_tokens) {
  std::string seen(n_tokens, '.');
  const int before = part.n - 1 - query;  // queries between this one and the last one
  const int begin = part.first_page * 128, tail_begin = part.first_tail_page() * 128;
  const int hidden = std::max(0, part.hidden_tokens - before);
  for (int t = begin + hidden; t < tail_begin + part.tail_tokens - before; ++t)
    seen[t] = t < tail_begin ? 's' : 't';
  return seen;
}

void check_step(const StepRules& rules, const StepTokens& tokens) {
  const auto at = [&] {
    return ::testing::Message() << tokens.n_tokens << " tokens, " << tokens.n_new << " new, "
                                << tokens.n_sealed << " pages sealed, window " << rules.window << ", sliding "
                                << rules.sliding_window << ", " << rules.max_queries << " queries";
  };
  const int n_parts = parts_of(tokens.n_new, rules.max_queries);
  int n = 0;
  for (int nth = 0; nth < n_parts; ++nth) {
    const StepPart part = step_part(rules, tokens, nth);
    ASSERT_EQ(part.first, n) << at();
    ASSERT_LE(part.n, rules.max_queries) << at();
    ASSERT_TRUE(part.n > 0 || n == tokens.n_new) << at();
    for (int query = 0; query < part.n; ++query, ++n) {
      const int t = tokens.first_new() + n;
      std::string expected(tokens.n_tokens, '.');
      for (int other = 0; other < tokens.n_tokens; ++other)
        if (sees(t, other, rules.sliding_window))
          expected[other] = other / 128 < sealed_for(t, rules.window, tokens.n_sealed) ? 's' : 't';
      ASSERT_EQ(seen_in(part, query, tokens.n_tokens), expected) << at() << ", query " << n;
    }
    const int pages = pages_for(tokens.n_tokens) - part.first_tail_page();
    ASSERT_TRUE(part.n == 0 || pages <= tail_pages_of(tokens.n_new, rules.window)) << at();
  }
  ASSERT_EQ(n, tokens.n_new) << at();
}

// A page is due if it is not yet sealed and a token must see it sealed. The tokens run from the step's first
// token to the one after the step.
void check_due(const StepRules& rules, const StepTokens& tokens) {
  const DuePages due = due_pages(rules, tokens);
  for (int page = 0; page <= tokens.n_tokens / 128; ++page) {
    bool expected = false;
    for (int t = std::max(0, tokens.first_new()); t <= tokens.n_tokens; ++t)
      for (int other = 128 * page; other < std::min(128 * (page + 1), t + 1); ++other)
        expected |= sees(t, other, rules.sliding_window) && page < sealed_for(t, rules.window, 0);
    expected &= page >= tokens.n_sealed;
    const bool is_due = page >= due.first && page < due.first + due.n;
    // A page of a sliding window may be sealed although none of these tokens sees it.
    ASSERT_TRUE(is_due || !expected) << tokens.n_tokens << ", page " << page;
    ASSERT_TRUE(is_due == expected || rules.sliding_window > 0) << tokens.n_tokens << ", page " << page;
    ASSERT_TRUE(!is_due || 128 * (page + 1) <= tokens.n_tokens);
  }
  ASSERT_EQ(due.sealed_after, sealed_for(tokens.n_tokens, rules.window, tokens.n_sealed));
  // The page tables of the first part reach the first due page.
  ASSERT_TRUE(due.n == 0 || due.first >= step_part(rules, tokens, 0).first_tail_page());
}

// Returns lengths up to four pages. All lengths near a page end are included, and all lengths near a page
// end plus a window of 100 tokens.
std::vector<int> lengths_from(int least) {
  std::vector<int> lengths;
  for (int n = least; n < 420; ++n)
    if (const int within = n % 128; within < 4 || within > 95 || within % 13 == 0) lengths.push_back(n);
  return lengths;
}

TEST(StepParts, ShowEachTokenWhatItsIndexDemands) {
  for (const int window : {0, 100, 256})
    for (const int sliding : {0, 1, 200})
      for (const int max_queries : {1, 3, 8})
        for (const int n_new : {1, 2, 9, 128})
          for (const int n : lengths_from(n_new))
            ASSERT_NO_FATAL_FAILURE(
                check_step({window, sliding, max_queries}, {n, n_new, sealed_for(n - n_new, window, 0)}));
}

TEST(StepParts, KeepPagesSealedThatAreWhereSequencesHaveBeenCutBack) {
  const StepRules rules{256, 0, 4};
  for (int n = 650; n < 1000; ++n) ASSERT_NO_FATAL_FAILURE(check_step(rules, {n, 5, 5}));
  EXPECT_EQ(step_part(rules, {651, 1, 5}, 0).tail_tokens, 11);
}

TEST(StepParts, OfFewerTokensThanQueriesShowTheFirstOnesNothing) {
  const StepPart part = step_part({0, 0, 8}, {3, 8, 0}, 0);
  EXPECT_EQ(part.n, 8);
  EXPECT_EQ(part.tail_tokens, 3);
  const StepPart none = step_part({0, 0, 4}, {0, 4, 0}, 0);
  EXPECT_EQ(none.n, 4);
  EXPECT_EQ(none.tail_tokens, 0);
  EXPECT_EQ(due_pages({0, 0, 4}, {0, 4, 0}).n, 0);
}

TEST(DuePagesOfAStep, AreThoseThatTokensUpToTheNextOneSeeSealed) {
  for (const int window : {0, 100, 256})
    for (const int sliding : {0, 1, 200})
      for (const int n_new : {1, 4, 128})
        for (const int n : lengths_from(n_new))
          ASSERT_NO_FATAL_FAILURE(
              check_due({window, sliding, 4}, {n, n_new, sealed_for(n - n_new, window, 0)}));
}

// A page that was sealed with rejected drafts is sealed again when other tokens have taken their place.
TEST(DuePagesOfAStep, AreDueAgainWhereDraftsWereRejected) {
  const StepRules rules{0, 0, 4};
  EXPECT_EQ(due_pages(rules, {130, 4, 0}).n, 1);
  EXPECT_EQ(due_pages(rules, {131, 4, 0}).n, 1);  // The step before kept one of four tokens.
  EXPECT_EQ(due_pages(rules, {135, 4, 1}).n, 0);
}

}  // namespace
}  // namespace kvant
