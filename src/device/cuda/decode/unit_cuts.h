// Cuts one sequence and head into ranges of equal cost. Each of the CTAs that work for the sequence and head
// alone gets one range.
#pragma once

#include "device/cuda/common/arguments.h"

namespace kvant::cuda {

// A page of protected tokens costs as much as this many sealed pages. Protected tokens have 16 bits per
// value, and recipes that protect tokens seal pages with 2 to 4 bits.
inline constexpr int kProtectedCost = 4;

// Holds the numbers of a sequence's units, in the order in which the kernels number units: sealed pages,
// pages of protected tokens, pages of the tail.
struct SequenceUnits {
  int all, sealed, protected_pages;
};

// Returns the unit at which the range of CTA `cta` begins if n_ctas CTAs share the sequence. If ranges are so
// short that a range could be empty, ranges have equal numbers of units instead of equal costs. A CTA without
// units would never report that it has left the sequence.
KVANT_HOST_DEVICE inline int first_unit_of(int cta, int n_ctas, const SequenceUnits& units) {
  const long long n_protected = units.protected_pages;
  if (units.all < 2 * kProtectedCost * n_ctas)
    return static_cast<int>(static_cast<long long>(cta) * units.all / n_ctas);
  const long long cost_of_all = units.all + (kProtectedCost - 1) * n_protected;
  const long long cost = cost_of_all * cta / n_ctas;  // the cost of the units before the range
  const long long after_sealed = cost - units.sealed;
  if (after_sealed <= 0) return static_cast<int>(cost);
  if (after_sealed < kProtectedCost * n_protected)
    return units.sealed + static_cast<int>(after_sealed / kProtectedCost);
  return static_cast<int>(cost - (kProtectedCost - 1) * n_protected);
}

}  // namespace kvant::cuda
