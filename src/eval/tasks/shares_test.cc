#include "eval/tasks/shares.h"

#include <gtest/gtest.h>

namespace kvant {
namespace {

TEST(Shares, HaveWilsonsInterval) {
  // Newcombe (1998), table I, gives these intervals for 81 of 263, 15 of 148, 0 of 20 and 1 of 29.
  const struct {
    int right, n;
    double lo, hi;
  } kCases[] = {
      {81, 263, 0.2553, 0.3662}, {15, 148, 0.0624, 0.1605}, {0, 20, 0, 0.1611}, {1, 29, 0.0061, 0.1718}};
  for (const auto& c : kCases) {
    const Interval interval = wilson_interval(c.right, c.n);
    EXPECT_NEAR(interval.lo, c.lo, 5e-5) << c.right;
    EXPECT_NEAR(interval.hi, c.hi, 5e-5) << c.right;
  }
  EXPECT_EQ(wilson_interval(20, 20).hi, 1.0);
}

// Compares lists in which `both`, `gained`, `lost` and `neither` problems are solved by both caches, only by
// the second, only by the first, and by none.
PairedShares compare(int both, int gained, int lost, int neither) {
  std::vector<bool> reference, own;
  const auto add = [&](int n, bool first, bool second) {
    reference.insert(reference.end(), n, first);
    own.insert(own.end(), n, second);
  };
  add(both, true, true);
  add(gained, false, true);
  add(lost, true, false);
  add(neither, false, false);
  return compare_shares(reference, own);
}

TEST(Shares, ComparePairs) {
  const PairedShares shares = compare(50, 2, 8, 40);
  EXPECT_EQ(shares.gained, 2);
  EXPECT_EQ(shares.lost, 8);
  EXPECT_NEAR(shares.difference, -0.06, 1e-12);
  // 2 (1 + 10 + 45) / 1024 = 0.109375
  EXPECT_NEAR(shares.p, 0.109375, 1e-9);
  // (3 - 9) / 102 +- 1.96 sqrt((12 / 102 - (6 / 102)^2) / 102)
  EXPECT_NEAR(shares.interval.lo, -0.058824 - 0.065569, 2e-5);
  EXPECT_NEAR(shares.interval.hi, -0.058824 + 0.065569, 2e-5);
}

TEST(Shares, ThatAreAlikeHaveNoDifference) {
  const PairedShares shares = compare(30, 0, 0, 10);
  EXPECT_EQ(shares.difference, 0);
  EXPECT_EQ(shares.p, 1);
  EXPECT_LT(shares.interval.lo, 0);
  EXPECT_GT(shares.interval.hi, 0);
  EXPECT_EQ(compare(0, 3, 3, 0).p, 1);
}

}  // namespace
}  // namespace kvant
