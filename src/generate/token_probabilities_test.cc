#include "generate/token_probabilities.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kvant {
namespace {

// Returns logits for the probabilities .1, .5, .05, .3 and .05. `offset` is added to all logits and must not
// change the result.
std::vector<float> logits(float offset) {
  std::vector<float> all;
  for (const float p : {0.1F, 0.5F, 0.05F, 0.3F, 0.05F}) all.push_back(std::log(p) + offset);
  return all;
}

TEST(TokenProbabilities, AreThoseOfTheSoftmax) {
  for (const float offset : {0.0F, 80.0F, -200.0F}) {
    EXPECT_NEAR(log_probability(logits(offset), 1), std::log(0.5), 1e-4) << offset;
    EXPECT_NEAR(log_probability(logits(offset), 4), std::log(0.05), 1e-4) << offset;
  }
}

TEST(TokenProbabilities, ComeWithTheLikeliestFirst) {
  const std::vector<TokenProbability> tokens = likeliest_tokens(logits(0), 4);
  ASSERT_EQ(tokens.size(), 4U);
  const std::int32_t expected[] = {1, 3, 0, 2};
  for (int i = 0; i < 4; ++i) EXPECT_EQ(tokens[i].token, expected[i]) << i;
  EXPECT_NEAR(tokens[1].log_probability, std::log(0.3), 1e-6);
  EXPECT_EQ(likeliest_tokens(logits(0), 9).size(), 5U);
  EXPECT_TRUE(likeliest_tokens(logits(0), 0).empty());
}

}  // namespace
}  // namespace kvant
