#include "cache/page_counts.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace kvant {
namespace {

static_assert(page_counts(1000, 256).sealed == 5);
static_assert(page_counts(1000, 256).tail_tokens == 1000 - 5 * 128);

// The expected numbers come from the definition, token by token and page by page.
TEST(PageCounts, FollowFromWhichPageEachTokenSeesSealed) {
  for (const int window : {0, 128, 256}) {
    for (const int sliding : {0, 1, 100, 128, 200, 512}) {
      for (int n = 0; n < 1100; ++n) {
        int sealed = 0, freed = 0;
        for (int page = 0; n >= 128 * (page + 1) + window; ++page) ++sealed;
        for (int page = 0; page < sealed; ++page) {
          bool seen = sliding == 0;
          for (int t = 128 * page; t < 128 * (page + 1); ++t) seen |= n - t < sliding;
          freed += seen ? 0 : 1;
        }
        const PageCounts counts = page_counts(n, window, sliding);
        ASSERT_EQ(counts.sealed, sealed) << n << " window " << window;
        ASSERT_EQ(counts.freed, freed) << n << " window " << window << " sliding " << sliding;
        ASSERT_EQ(counts.due, sealed);
        ASSERT_EQ(counts.tail_tokens, n - 128 * sealed);
      }
    }
  }
}

TEST(PageCounts, KeepWhatIsSealedAlready) {
  const PageCounts cut_back = page_counts(650, 256, 0, 5);
  EXPECT_EQ(cut_back.sealed, 5);
  EXPECT_EQ(cut_back.due, 0);
  EXPECT_EQ(cut_back.tail_tokens, 10);
  EXPECT_EQ(page_counts(1024, 256, 0, 5).due, 1);
}

TEST(PageCounts, OfATailAreInSteps) {
  for (int n = 0; n <= 300; ++n) {
    int room = 0;
    while (room < n) room += kTailStep;
    EXPECT_EQ(tail_room(n), room);
    EXPECT_EQ(pages_for(n), n / 128 + (n % 128 > 0 ? 1 : 0));
  }
}

TEST(FirstVisibleToken, IsAsManyTokensBackAsTheWindowHolds) {
  EXPECT_EQ(first_visible_token(1000, 0), 0);
  EXPECT_EQ(first_visible_token(99, 100), 0);
  EXPECT_EQ(first_visible_token(100, 100), 1);
  EXPECT_EQ(first_visible_token(1000, 1), 1000);
}

}  // namespace
}  // namespace kvant
