#include "generate/ngram_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace kvant {
namespace {

// Computes the expected match by trying every place.
NgramIndex::Match best_match(const std::vector<std::int32_t>& tokens, int expected) {
  const int n = static_cast<int>(tokens.size());
  NgramIndex::Match best;
  for (int next = n - 1; next >= 1; --next) {
    int length = 0;
    while (length < next && length < NgramIndex::kLongest &&
           tokens[next - 1 - length] == tokens[n - 1 - length])
      ++length;
    if (length < NgramIndex::kShortest) continue;
    const bool nearer = length == best.length && expected >= 0 && next >= expected;
    if (length > best.length || nearer) best = {next, length};
  }
  return best;
}

TEST(NgramIndex, FindsWhatASearchOfAllPlacesFinds) {
  std::mt19937 random(1);
  // A small vocabulary gives many long matches, and a large vocabulary gives few.
  for (const int n_tokens : {3, 40}) {
    std::uniform_int_distribution<std::int32_t> token(0, n_tokens - 1);
    for (int repeat = 0; repeat < 20; ++repeat) {
      NgramIndex index;
      std::vector<std::int32_t> tokens;
      for (int i = 0; i < 150; ++i) {
        // From time to time, a piece of the earlier text is repeated.
        const int from = i > 20 && i % 40 < 15 ? i - 20 : -1;
        tokens.push_back(from >= 0 ? tokens[from] : token(random));
        index.append(tokens.back());
        const int expected = i % 3 == 0 ? -1 : i / 2;
        const auto right = best_match(tokens, expected), found = index.find(expected);
        ASSERT_EQ(found.length, right.length);
        ASSERT_EQ(found.next, right.next);
      }
    }
  }
}

TEST(NgramIndex, KeepsItsChainsWhenItGrows) {
  NgramIndex index;
  for (int i = 0; i < 5000; ++i) index.append(i);
  for (const int token : {7, 8, 9}) index.append(token);
  EXPECT_EQ(index.find(-1).next, 10);
  EXPECT_EQ(index.find(-1).length, 3);
}

// A pair of tokens that occurs everywhere must not cost more than any other pair.
TEST(NgramIndex, LooksAtTheNewestPlacesOfAPairThatIsEverywhere) {
  NgramIndex index;
  for (const int token : {5, 1, 1, 6}) index.append(token);
  for (int i = 0; i < 2 * NgramIndex::kMostPlaces; ++i) {
    for (const int token : {1, 1, 100 + i}) index.append(token);
  }
  for (const int token : {5, 1, 1}) index.append(token);
  const auto match = index.find(-1);
  EXPECT_EQ(match.length, 2);
  EXPECT_EQ(index[match.next], 100 + 2 * NgramIndex::kMostPlaces - 1);
}

}  // namespace
}  // namespace kvant
