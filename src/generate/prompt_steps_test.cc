#include "generate/prompt_steps.h"

#include <gtest/gtest.h>

#include "base/page_size.h"

namespace kvant {
namespace {

// Returns, for each token of a prompt, whether a step of at least kMinPromptStep tokens reads the token.
std::vector<bool> in_large_steps(int first, int n, int wanted) {
  std::vector<bool> large;
  for (int read = first; read < n;) {
    const int step = next_prompt_step(read, n, wanted);
    EXPECT_GT(step, 0);
    EXPECT_LT(step, wanted + kMinPromptStep);
    large.insert(large.end(), step, step >= kMinPromptStep);
    read += step;
  }
  EXPECT_EQ(static_cast<int>(large.size()), n - first);
  return large;
}

TEST(PromptSteps, ReadATokenTheSameWayWhateverTheirSizeAndWhereverTheyBegin) {
  for (int n = 1; n < 5 * kPageTokens; n += 7) {
    const std::vector<bool> all = in_large_steps(0, n, 512);
    for (const int wanted : {32, 33, 64, 100, 128, 300}) {
      for (int first = 0; first < n; first += kPageTokens) {
        const std::vector<bool> some = in_large_steps(first, n, wanted);
        ASSERT_TRUE(std::equal(some.begin(), some.end(), all.begin() + first)) << n << " " << wanted;
      }
    }
  }
}

TEST(PromptSteps, AreLargeButForARestOfLessThanTheSmallestStep) {
  const std::vector<bool> large = in_large_steps(0, 2 * kPageTokens + 31, 64);
  for (int i = 0; i < static_cast<int>(large.size()); ++i) EXPECT_EQ(large[i], i < 2 * kPageTokens) << i;
  for (const bool step : in_large_steps(0, 2 * kPageTokens + 70, 64)) EXPECT_TRUE(step);
}

}  // namespace
}  // namespace kvant
