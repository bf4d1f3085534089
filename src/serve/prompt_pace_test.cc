#include "serve/prompt_pace.h"

#include <gtest/gtest.h>

#include "generate/prompt_steps.h"

namespace kvant {
namespace {

// Returns the pace after 20 steps on a machine where a step takes of_step seconds plus of_token seconds per
// token.
int settled_pace(PromptPace pace, double of_step, double of_token) {
  for (int i = 0; i < 20; ++i) pace.add(pace.tokens(), of_step + of_token * pace.tokens());
  const int tokens = pace.tokens();
  pace.add(tokens, of_step + of_token * tokens);
  EXPECT_EQ(pace.tokens(), tokens);  // the pace must have settled
  return tokens;
}

TEST(PromptPace, FindsWhatFitsIntoTheTime) {
  for (const double of_step : {0.0, 0.005, 0.03}) {
    for (const double of_token : {1e-5, 1e-4, 2e-4, 1e-3}) {
      const double fits = (0.1 - of_step) / of_token;
      const int tokens = settled_pace({512, 0.1, 2048}, of_step, of_token);
      EXPECT_LE(tokens, std::max(fits, 1.0 * kMinPromptStep)) << of_step << " " << of_token;
      // The pace grows neither by less than a quarter, nor within a page, nor beyond .95 of the time limit.
      EXPECT_GE(tokens, std::min((0.95 * fits - 128) / 1.25 / (1 + of_step / 0.1), 2048.0))
          << of_step << " " << of_token;
    }
  }
}

TEST(PromptPace, HasTheSmallestStepWhereNoneFits) {
  EXPECT_EQ(settled_pace({512, 0.1, 2048}, 0.2, 1e-3), kMinPromptStep);
}

TEST(PromptPace, RecoversFromASlowStep) {
  PromptPace pace(512, 0.1, 2048);
  pace.add(512, 1.0);
  EXPECT_LT(pace.tokens(), 128);
  EXPECT_GE(settled_pace(pace, 0, 1e-4), 768);
}

// Some step sizes are slower than their neighbours. A fast step of 512 tokens can therefore wrongly suggest
// that 640 tokens fit into the time limit.
TEST(PromptPace, DoesntGoBackToWhatWasTooLong) {
  PromptPace pace(640, 0.1, 2048);
  pace.add(640, 0.101);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(pace.tokens(), 512);
    pace.add(512, 0.079);
  }
}

// The prompt has 32,000 tokens. Steps get slower with depth, and every third step is another 5 % slower.
TEST(PromptPace, SeldomTakesLongerAsDepthGrows) {
  PromptPace pace(512, 0.1, 2048);
  int read = 0, steps = 0, too_long = 0;
  for (; read < 32000; ++steps) {
    const int tokens = pace.tokens();
    const double seconds = (0.01 + tokens * (1e-4 + 2e-9 * read)) * (steps % 3 == 2 ? 1.05 : 1);
    EXPECT_LT(seconds, 0.105);
    too_long += seconds > 0.1 ? 1 : 0;
    pace.add(tokens, seconds);
    read += tokens;
  }
  EXPECT_LE(too_long, 2);
  EXPECT_LT(steps, 55);
}

TEST(PromptPace, LearnsNothingFromThePromptsEnds) {
  PromptPace pace(512, 0.1, 2048);
  pace.add(40, 0.02);
  pace.add(40, 0.2);
  EXPECT_EQ(pace.tokens(), 512);
}

TEST(PromptPace, StaysAsItIsToldWithoutATime) {
  EXPECT_EQ(settled_pace({64, 0, 2048}, 0.5, 1e-3), 64);
}

}  // namespace
}  // namespace kvant
