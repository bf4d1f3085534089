#include "compact/branch_cells.h"

#include <algorithm>

namespace kvant {
namespace {

// Computes e^-x for x in [0, 32] as (e^(-x / 64))^64, with the power series of e^(-x / 64).
constexpr double exp_of_negative(double x) {
  const double y = x / 64;
  double term = 1, sum = 1;
  for (int i = 1; i < 16; ++i) {
    term *= -y / i;
    sum += term;
  }
  for (int i = 0; i < 6; ++i) sum *= sum;
  return sum;
}

// The density is a mixture. Most weight is on the standard normal distribution, and a small share on a
// distribution of three times the width, for values that the prediction misses.
constexpr double density(double z) {
  constexpr double kWideShare = 0.04, kWidth = 3;
  return (1 - kWideShare) * exp_of_negative(z * z / 2) +
         kWideShare / kWidth * exp_of_negative(z * z / (2 * kWidth * kWidth));
}

// Integrates the density by the trapezoidal rule at compile time.
constexpr std::array<NormalShares, kMaxTrellisBits> normal_shares() {
  std::array<double, 2 * kFarthest + 1> sums{};
  for (int i = 1; i <= 2 * kFarthest; ++i) {
    const double z = static_cast<double>(i - kFarthest) / kStepsOfDeviation;
    sums[i] = sums[i - 1] + density(z - 1.0 / kStepsOfDeviation) + density(z);
  }
  std::array<NormalShares, kMaxTrellisBits> shares{};
  for (int b = 0; b < kMaxTrellisBits; ++b) {
    const double whole = kWholeInterval - (2U << b);
    for (int i = 0; i <= 2 * kFarthest; ++i)
      shares[b][i] = static_cast<std::uint16_t>(sums[i] / sums[2 * kFarthest] * whole);
  }
  return shares;
}
constexpr std::array<NormalShares, kMaxTrellisBits> kShares = normal_shares();

}  // namespace

const std::array<NormalShares, kMaxTrellisBits> kNormalShares = kShares;

template <class Accept>
BranchCells TrellisCells::cells_of(int older, const Accept& accept) const {
  const int shift = kTrellisBits - table_.bits;
  const auto level = [&](int branch) -> int { return table_.levels[branch << shift | older]; };
  BranchCells cells{};
  for (int branch = 0; branch < 1 << table_.bits; ++branch)
    if (accept(branch)) cells.branches[cells.n++] = static_cast<std::uint8_t>(branch);
  std::stable_sort(cells.branches.begin(), cells.branches.begin() + cells.n,
                   [&](int a, int b) { return level(a) < level(b); });
  for (int i = 0; i < cells.n; ++i) {
    cells.ranks[cells.branches[i]] = static_cast<std::uint8_t>(i);
    if (i > 0)
      cells.middles[i - 1] =
          static_cast<std::int16_t>(level(cells.branches[i - 1]) + level(cells.branches[i]));
  }
  return cells;
}

TrellisCells::TrellisCells(const TrellisTable& table) : table_(table) {
  for (int older = 0; older < 1 << (kTrellisBits - table.bits); ++older)
    cells_.push_back(cells_of(older, [](int) { return true; }));
}

BranchCells TrellisCells::with_known(int older, int n_known, int known) const {
  return cells_of(older, [&](int branch) { return branch >> (table_.bits - n_known) == known; });
}

const TrellisCells& trellis_cells(int bits) {
  static const std::vector<TrellisCells> all = [] {
    std::vector<TrellisCells> made;
    for (const TrellisTable& table : trellis_tables()) made.emplace_back(table);
    return made;
  }();
  return all[bits - 1];
}

}  // namespace kvant
