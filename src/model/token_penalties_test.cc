#include "model/token_penalties.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace kvant::token_penalties_test {
namespace {

std::vector<float> after(const PenaltyOptions& options, std::vector<std::int32_t> prompt,
                         const std::vector<std::int32_t>& completion, std::vector<float> logits) {
  TokenPenalties penalties(options);
  penalties.begin(prompt);
  for (const std::int32_t token : completion) penalties.accept(token);
  penalties.apply(logits);
  return logits;
}

// The OpenAI API's formula is mu[j] - c[j] * frequency - (c[j] > 0) * presence, where c counts only the
// completion.
TEST(TokenPenalties, CountTheCompletionAsTheOpenAiApiDoes) {
  const std::vector<float> logits = {1, 2, -3, 4};
  EXPECT_EQ(after({.presence = 0.5F, .frequency = 0.25F}, {3, 3, 0}, {1, 1, 2}, logits),
            (std::vector<float>{1, 2 - 0.5F - 2 * 0.25F, -3 - 0.5F - 0.25F, 4}));
  EXPECT_EQ(after({.presence = -1}, {}, {0}, logits), (std::vector<float>{2, 2, -3, 4}));
}

TEST(TokenPenalties, RepetitionCountsThePromptToo) {
  EXPECT_EQ(after({.repeat = 2, .repeat_last_n = -1}, {0, 2, 2}, {1}, {1, 2, -3, 4}),
            (std::vector<float>{0.5F, 1, -6, 4}));
}

TEST(TokenPenalties, RepetitionForgetsAllButTheLastTokens) {
  const std::vector<float> logits = {1, 1, 1, 1};
  std::vector<std::int32_t> text = {0, 1, 0, 2, 3, 3, 1};
  for (int n = 0; n <= 7; ++n) {
    std::vector<float> expected = logits;
    for (int t = 0; t < 4; ++t)
      if (std::find(text.end() - n, text.end(), t) != text.end()) expected[t] = 0.5F;
    for (int n_prompt = 0; n_prompt <= 7; ++n_prompt)
      EXPECT_EQ(after({.repeat = 2, .repeat_last_n = n}, {text.begin(), text.begin() + n_prompt},
                      {text.begin() + n_prompt, text.end()}, logits),
                expected)
          << n << " " << n_prompt;
  }
}

TEST(TokenPenalties, ACompletionBeginsAnew) {
  TokenPenalties penalties({.presence = 1, .repeat = 2});
  penalties.begin(std::vector<std::int32_t>{0});
  penalties.accept(1);
  penalties.begin(std::vector<std::int32_t>{2});
  std::vector<float> logits = {2, 2, 2};
  penalties.apply(logits);
  EXPECT_EQ(logits, (std::vector<float>{2, 2, 1}));
}

}  // namespace
}  // namespace kvant::token_penalties_test
