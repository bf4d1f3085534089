// Computes intervals of shares, and of differences between the shares of two caches on the same problems.
#pragma once

#include <cstdint>
#include <vector>

#include "eval/logit_metrics.h"

namespace kvant {

// Returns the 95 % score interval of `right` successes in n > 0 trials (Wilson 1927).
Interval wilson_interval(int right, int n);

// Compares the successes of two caches on the same problems.
struct PairedShares {
  int gained = 0;  // problems that only the cache solves
  int lost = 0;    // problems that only the reference solves
  // `difference` is the cache's share of solved problems minus the reference's share.
  double difference = 0;
  // Holds the 95 % interval of the difference (Bonett and Price 2012, which adds one problem to each of
  // `gained` and `lost`).
  Interval interval;
  // Holds the probability that chance alone splits the gained and lost problems at least this unequally
  // (McNemar's exact test, two-sided).
  double p = 1;
};

// Compares two lists of equal length, with one entry per problem.
PairedShares compare_shares(const std::vector<bool>& reference, const std::vector<bool>& own);

}  // namespace kvant
