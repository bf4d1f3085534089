// The probabilities of a trellis's branches, as integers: each processor and compiler computes the same.
//
// A value is expected to be normal around a prediction. Of the levels that the branches of a state lead to,
// the encoder takes about the nearest: a branch has the share of the normal distribution that lies between
// the middles to its neighbours.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "compact/symbol_coder.h"
#include "format/trellis.h"

namespace kvant {

// Distances from the prediction are in 1 / kStepsOfDeviation of the standard deviation.
inline constexpr int kStepsOfDeviation = 128;
inline constexpr int kFarthest = 8 * kStepsOfDeviation;

// For each B the share of [-infinity, z], |z| <= kFarthest, in 1 / 2^16 of what the intervals of 2^B cells
// have beyond 1 each; it never falls.
using NormalShares = std::array<std::uint16_t, 2 * kFarthest + 1>;
extern const std::array<NormalShares, kMaxTrellisBits> kNormalShares;

// Branches in the order of their levels.
struct BranchCells {
  int n = 0;                                                // 2 to 64, a power of two
  std::array<std::int16_t, 1 << kMaxTrellisBits> middles;   // [n - 1]: twice the level between i and i + 1
  std::array<std::uint8_t, 1 << kMaxTrellisBits> branches;  // [n]
  std::array<std::uint8_t, 1 << kMaxTrellisBits> ranks;     // [2^B]: where a branch is among them
};

// Where the prediction is, in 1 / 2^kFineBits of the steps that deviations are counted in.
inline constexpr int kFineBits = 32;
struct ValueScale {
  std::int64_t half_level;  // half a level
  std::int64_t expected;
};

// The beginning of cell i's interval, 0 < i < n; those of cell 0 and of the end are 0 and 2^16. Each has at
// least 1.
inline std::uint32_t inner_start(const BranchCells& cells, const NormalShares& shares, int i,
                                 const ValueScale& scale) {
  auto z = static_cast<std::int32_t>((cells.middles[i - 1] * scale.half_level - scale.expected) >> kFineBits);
  z = z < -kFarthest ? -kFarthest : z;
  z = z > kFarthest ? kFarthest : z;
  return static_cast<std::uint32_t>(i) + shares[z + kFarthest];
}
inline std::uint32_t cell_start(const BranchCells& cells, const NormalShares& shares, int i,
                                const ValueScale& scale) {
  if (i == 0) return 0;
  return i == cells.n ? kWholeInterval : inner_start(cells, shares, i, scale);
}

// Of one trellis. A state's lower 8 - B bits come from the symbols before, the upper B are the branch.
class TrellisCells {
 public:
  explicit TrellisCells(const TrellisTable& table);

  const BranchCells& of(int older) const { return cells_[older]; }
  // Of the branches whose upper bits are known: n_known of them, at least 1 and less than B.
  BranchCells with_known(int older, int n_known, int known) const;

 private:
  template <class Accept>
  BranchCells cells_of(int older, const Accept& accept) const;

  const TrellisTable& table_;
  std::vector<BranchCells> cells_;  // [2^(8 - B)]
};

// For B = 1 to 6.
const TrellisCells& trellis_cells(int bits);

}  // namespace kvant
