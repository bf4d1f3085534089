#include "device/cuda/decode/unit_cuts.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace kvant::cuda {
namespace {

long long cost_of(const SequenceUnits& units, int first, int last) {
  long long cost = 0;
  for (int unit = first; unit < last; ++unit)
    cost += unit >= units.sealed && unit < units.sealed + units.protected_pages ? kProtectedCost : 1;
  return cost;
}

TEST(UnitCuts, CoverEachUnitOnceWithoutEmptyRanges) {
  for (const int sealed : {0, 1, 63, 1024}) {
    for (const int protected_pages : {0, 1, 52, 300}) {
      for (const int tail : {0, 1, 2}) {
        const SequenceUnits units{sealed + protected_pages + tail, sealed, protected_pages};
        for (const int n_ctas : {1, 2, 7, 16, 132}) {
          if (n_ctas > units.all) continue;
          ASSERT_EQ(first_unit_of(0, n_ctas, units), 0);
          ASSERT_EQ(first_unit_of(n_ctas, n_ctas, units), units.all);
          for (int cta = 0; cta < n_ctas; ++cta)
            ASSERT_LT(first_unit_of(cta, n_ctas, units), first_unit_of(cta + 1, n_ctas, units))
                << sealed << " sealed, " << protected_pages << " protected, CTA " << cta << " of " << n_ctas;
        }
      }
    }
  }
}

// The sequence has 128k tokens, and 5 % of them are protected. With equal numbers of units, the last CTA
// would have all protected pages.
TEST(UnitCuts, SpreadProtectedPagesByTheirCost) {
  const SequenceUnits units{1024 + 52 + 1, 1024, 52};
  constexpr int kCtas = 16;
  long long most = 0;
  for (int cta = 0; cta < kCtas; ++cta)
    most = std::max(most,
                    cost_of(units, first_unit_of(cta, kCtas, units), first_unit_of(cta + 1, kCtas, units)));
  EXPECT_LE(most, cost_of(units, 0, units.all) / kCtas + kProtectedCost);
}

TEST(UnitCuts, AreEqualWithoutProtectedPages) {
  const SequenceUnits units{1000, 998, 0};
  for (int cta = 0; cta <= 16; ++cta) EXPECT_EQ(first_unit_of(cta, 16, units), cta * 1000 / 16);
}

}  // namespace
}  // namespace kvant::cuda
