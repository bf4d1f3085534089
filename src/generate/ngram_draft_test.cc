#include "generate/ngram_draft.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "generate/speculation_pace.h"

namespace kvant {
namespace {

using Tokens = std::vector<std::int32_t>;

Tokens range(int first, int n) {
  Tokens tokens(n);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

TEST(NgramDraft, ProposesNothingForWhatIsNew) {
  NgramDraft draft;
  draft.read(range(0, 50));
  EXPECT_TRUE(draft.propose(8, SpeculationPace()).tokens.empty());
}

TEST(NgramDraft, GoesOnAsTheTextDidBefore) {
  NgramDraft draft;
  draft.read(range(0, 50));
  for (const int token : {10, 11}) draft.generate(token);
  const Draft proposed = draft.propose(5, SpeculationPace());
  EXPECT_EQ(proposed.tokens, range(12, 5));
  ASSERT_EQ(proposed.odds.size(), 5U);
  // Longer matches have better odds.
  for (std::size_t i = 1; i < 5; ++i) EXPECT_GE(proposed.odds[i], proposed.odds[i - 1]);
}

// The test resembles an edit of a text, because one token of the copy differs.
TEST(NgramDraft, GoesOnBehindAChangeWithinTwoTokens) {
  NgramDraft draft;
  Tokens text = range(0, 30);
  text.insert(text.end(), {5, 6, 90, 91});  // a later place that begins like the place after the change
  draft.read(text);
  for (const int token : {1, 2, 3, 200, 5, 6}) draft.generate(token);
  EXPECT_EQ(draft.propose(3, SpeculationPace()).tokens, range(7, 3));
}

TEST(NgramDraft, RepeatsALoop) {
  NgramDraft draft;
  for (const int token : {1, 2, 3, 1, 2, 3, 1, 2}) draft.generate(token);
  EXPECT_EQ(draft.propose(7, SpeculationPace()).tokens, (Tokens{3, 1, 2, 3, 1, 2, 3}));
}

TEST(NgramDraft, CopiesAnExpectedTextButNotBeyondItsEnd) {
  NgramDraft draft;
  draft.expect(range(100, 10));
  draft.read(range(0, 20));
  for (const int token : {105, 106}) draft.generate(token);
  EXPECT_EQ(draft.propose(8, SpeculationPace()).tokens, range(107, 3));
}

TEST(NgramDraft, LearnsHowOftenItIsRight) {
  NgramDraft wrong, right;
  for (int i = 0; i < 40; ++i) {
    const Tokens pair = {1000, 1001};
    wrong.read(pair);
    wrong.generate(i);  // each token differs, so every prediction is wrong
    right.read(pair);
    right.generate(7);
  }
  wrong.read(Tokens{1000, 1001});
  right.read(Tokens{1000, 1001});
  EXPECT_LT(wrong.propose(1, SpeculationPace()).odds.at(0), 0.1);
  EXPECT_GT(right.propose(1, SpeculationPace()).odds.at(0), 0.9);
}

}  // namespace
}  // namespace kvant
