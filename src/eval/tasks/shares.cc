#include "eval/tasks/shares.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace kvant {
namespace {

// Holds the 97.5 % quantile of the normal distribution.
constexpr double kNormalQuantile = 1.959963984540054;

// Returns the probability of at most `most` heads in n throws of a coin.
double binomial_tail(int most, int n) {
  double sum = 0;
  for (int k = 0; k <= most; ++k) {
    sum +=
        std::exp(std::lgamma(n + 1.0) - std::lgamma(k + 1.0) - std::lgamma(n - k + 1.0) - n * std::log(2.0));
  }
  return sum;
}

}  // namespace

Interval wilson_interval(int right, int n) {
  KVANT_CHECK(n > 0 && right >= 0 && right <= n, "a share of nothing");
  const double share = static_cast<double>(right) / n;
  const double z2 = kNormalQuantile * kNormalQuantile / n;
  const double middle = (share + z2 / 2) / (1 + z2);
  const double half = kNormalQuantile * std::sqrt((share * (1 - share) + z2 / 4) / n) / (1 + z2);
  return {std::max(0.0, middle - half), std::min(1.0, middle + half)};
}

PairedShares compare_shares(const std::vector<bool>& reference, const std::vector<bool>& own) {
  KVANT_CHECK(reference.size() == own.size() && !own.empty(), "lists of other problems");
  PairedShares shares;
  for (std::size_t i = 0; i < own.size(); ++i) {
    shares.gained += own[i] && !reference[i] ? 1 : 0;
    shares.lost += reference[i] && !own[i] ? 1 : 0;
  }
  const auto n = static_cast<double>(own.size());
  shares.difference = (shares.gained - shares.lost) / n;
  const double gained = (shares.gained + 1) / (n + 2), lost = (shares.lost + 1) / (n + 2);
  const double middle = gained - lost;
  const double half = kNormalQuantile * std::sqrt((gained + lost - middle * middle) / (n + 2));
  shares.interval = {std::max(-1.0, middle - half), std::min(1.0, middle + half)};
  const int unlike = shares.gained + shares.lost;
  if (unlike > 0) shares.p = std::min(1.0, 2 * binomial_tail(std::min(shares.gained, shares.lost), unlike));
  return shares;
}

}  // namespace kvant
