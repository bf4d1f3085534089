#include "attention/device_row_tables.h"

#include <gtest/gtest.h>

namespace kvant::visible_tokens_test {
namespace {

// States the rule: a token sees a page sealed if the whole page and the window lie before the token. The
// token is decoded, or belongs to a prompt in blocks of a page.
int sealed_by_rule(int token, int window) {
  int n = 0;
  while (token >= kPageTokens * (n + 1) + window) ++n;
  return n;
}

TEST(VisibleTokens, FollowTheRuleForAnyCut) {
  for (const int window : {0, 128, 256}) {
    for (const bool is_prompt : {false, true}) {
      for (const int first : {0, 5, 127, 128, 300, 512}) {
        for (const int n : {1, 128, 700}) {
          const StepSlice slice{0, n, is_prompt};
          // Earlier steps have sealed what their last decoded token demanded, or what the end of their last
          // prompt block demanded.
          const int held =
              sealed_by_rule(is_prompt ? first / kPageTokens * kPageTokens : std::max(0, first - 1), window);
          const auto visible = visible_tokens(first, slice, held, window, kPageTokens);
          ASSERT_EQ(std::ssize(visible), n);
          for (int i = 0; i < n; ++i) {
            const int token = first + i;
            const int expected =
                sealed_by_rule(is_prompt ? token / kPageTokens * kPageTokens : token, window);
            ASSERT_EQ(visible[i].sealed_pages, expected) << token << " of " << first << ", window " << window;
            ASSERT_EQ(visible[i].tail_tokens, token + 1 - expected * kPageTokens);
          }
        }
      }
    }
  }
}

TEST(VisibleTokens, LargerPromptBlocksSeeThemselvesUnsealed) {
  const auto visible = visible_tokens(0, {0, 600, true}, 0, 0, 256);
  EXPECT_EQ(visible[255].sealed_pages, 0);
  EXPECT_EQ(visible[256].sealed_pages, 2);
  EXPECT_EQ(visible[511].sealed_pages, 2);
  EXPECT_EQ(visible[511].tail_tokens, 256);
  EXPECT_EQ(visible[512].sealed_pages, 4);
}

TEST(VisibleTokens, KeepWhatACutBackHasLeftSealed) {
  const auto visible = visible_tokens(130, {0, 1, false}, 1, 128, kPageTokens);
  EXPECT_EQ(visible[0].sealed_pages, 1);
  EXPECT_EQ(visible[0].tail_tokens, 3);
}

}  // namespace
}  // namespace kvant::visible_tokens_test
