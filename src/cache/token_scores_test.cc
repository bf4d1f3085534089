#include "cache/token_scores.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvant {
namespace {

TEST(ObserversOf, CountsTheQueriesThatCouldSeeAToken) {
  // The expected count applies the definition: the last 64 queries of each page before `end`, at or after the
  // token.
  for (const int end : {128, 256, 640}) {
    for (int token = 0; token < end; ++token) {
      int n = 0;
      for (int q = token; q < end; ++q) n += q % 128 >= 64 ? 1 : 0;
      ASSERT_EQ(observers_of(token, end), n) << token << " of " << end;
    }
  }
}

TEST(TokenScores, AverageTheWeightsOverThoseWhoCouldSee) {
  TokenScores scores;
  scores.reserve(256);
  std::vector<double> first(128, 0.64), second(256, 1.28);
  scores.end_page(128, 64, first);
  EXPECT_NEAR(scores.score(0), 0.64 / 64, 1e-5);
  EXPECT_NEAR(scores.score(127), 0.64 / 1, 1e-3);
  scores.end_page(256, 192, second);
  EXPECT_NEAR(scores.score(0), (0.64 + 1.28) / 128, 2e-5);
  EXPECT_NEAR(scores.score(255), 1.28, 1e-3);
}

TEST(TokenScores, SelectTheHighestOfAPageAboveTheQuantileWithinTheRoom) {
  TokenScores scores;
  scores.reserve(256);
  std::vector<double> weights(256, 0.0);
  for (int t = 0; t < 256; ++t) weights[t] = observers_of(t, 256) * 0.001;
  for (const int t : {3, 130, 140, 150, 200}) weights[t] = observers_of(t, 256) * (0.1 + t * 0.001);
  std::vector<double> none(128, 0.0);
  scores.end_page(128, 64, none);
  scores.end_page(256, 192, weights);
  EXPECT_EQ(scores.select(1, 0.02, 10, 0).count(), 4);
  const TokenMask two = scores.select(1, 0.02, 2, 0);
  EXPECT_EQ(two.count(), 2);
  EXPECT_TRUE(two.test(150 - 128) && two.test(200 - 128));
  EXPECT_TRUE(scores.select(0, 0.02, 10, 0).test(3));
  EXPECT_FALSE(scores.select(0, 0.02, 10, 4).test(3));  // The sink is protected anyway.
  EXPECT_TRUE(scores.select(1, 0.02, 0, 0).empty());
}

TEST(Observers, AreTheLastQueriesOfAPage) {
  EXPECT_LT(observer_row(128 + 63), 0);
  EXPECT_EQ(observer_row(128 + 64), 0);
  EXPECT_EQ(observer_row(255), 63);
  EXPECT_EQ(first_observer_of(256, /*first=*/0, /*first_observer=*/-1), 192);
  EXPECT_EQ(first_observer_of(256, /*first=*/250, /*first_observer=*/-1), 250);
  EXPECT_EQ(first_observer_of(256, /*first=*/250, /*first_observer=*/200), 200);
  EXPECT_EQ(first_observer_of(384, /*first=*/250, /*first_observer=*/200), 320);
}

TEST(TokenScores, AverageOverFewerObserversAfterATruncationIntoAPageThatHadEnded) {
  TokenScores scores;
  scores.reserve(256);
  scores.end_page(128, 64, std::vector<double>(128, 0.64));
  scores.end_page(256, 192, std::vector<double>(256, 0.64));
  scores.truncate(246);
  scores.end_page(256, 246, std::vector<double>(256, 0.1));
  // In page 0, 64 observers gave token 0 a weight of 0.64 / 64 each. The 10 observers now give 0.1 / 10 each,
  // so the score is 0.01 throughout.
  EXPECT_NEAR(scores.score(0), 0.01, 1e-5);
  EXPECT_NEAR(scores.score(200), 0.1 / 10, 1e-5);
  EXPECT_NEAR(scores.score(250), 0.1 / 6, 2e-5);
}

TEST(TokenScores, KeepTheirPrecisionAtAnyContext) {
  TokenScores scores;
  scores.reserve(128);
  std::vector<double> weights(128,
                              64e-6);  // Each of 64 queries gives 1e-6, as in a context of a million tokens.
  weights[5] = 64.2e-6;
  scores.end_page(128, 64, weights);
  EXPECT_NEAR(scores.score(0), 1e-6, 1e-9);
  EXPECT_GT(scores.score(5), scores.score(0));
}

}  // namespace
}  // namespace kvant
