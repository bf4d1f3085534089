#include "task/eval_sources.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvant {
namespace {

TEST(EvalSources, AreMadeForFewerTextsWhileMemoryIsShort) {
  std::vector<int> asked;
  int n_texts = 16;
  const auto made = make_what_fits(n_texts, [&](int n) -> Result<int> {
    asked.push_back(n);
    if (n > 4) return shortage("no room for {}", n);
    return n;
  });
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(asked, (std::vector<int>{16, 8, 4}));
  EXPECT_EQ(n_texts, 4);
}

TEST(EvalSources, AreNotMadeAgainIfTheyLackMoreThanMemory) {
  int n_calls = 0, n_texts = 16;
  const auto made = make_what_fits(n_texts, [&](int) -> Result<int> {
    ++n_calls;
    return error("no such recipe");
  });
  EXPECT_FALSE(made.ok());
  EXPECT_EQ(n_calls, 1);
  EXPECT_EQ(n_texts, 16);
}

}  // namespace
}  // namespace kvant
