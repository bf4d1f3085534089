// Computes the probabilities of a trellis's branches as integers, so every processor and compiler gets equal
// results.
//
// A value is expected to be normally distributed around a prediction. The encoder mostly takes the nearest of
// the levels that a state's branches lead to. So the probability of a branch is the mass of the normal
// distribution between the midpoints to the neighbouring levels.
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

// Holds the probability of [-infinity, z], |z| <= kFarthest, for each B. Each of the 2^B cells gets 1 / 2^16
// in advance, and these shares distribute the rest, in 1 / 2^16. The shares never decrease.
using NormalShares = std::array<std::uint16_t, 2 * kFarthest + 1>;
extern const std::array<NormalShares, kMaxTrellisBits> kNormalShares;

// Holds the branches of one state, sorted by their levels.
struct BranchCells {
  int n = 0;  // 2 to 64, a power of two
  // [n - 1]: twice the midpoint of levels i and i + 1
  std::array<std::int16_t, 1 << kMaxTrellisBits> middles;
  std::array<std::uint8_t, 1 << kMaxTrellisBits> branches;  // [n]
  std::array<std::uint8_t, 1 << kMaxTrellisBits> ranks;  // [2^B]: each branch's position in the sorted order
};

// Says where the prediction lies, in 1 / 2^kFineBits of the steps of kStepsOfDeviation.
inline constexpr int kFineBits = 32;
struct ValueScale {
  std::int64_t half_level;
  std::int64_t expected;
};

// Returns the start of cell i's interval, 0 < i < n. Cell 0 starts at 0, and the last cell ends at 2^16. Each
// cell has at least size 1.
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

// Holds the cells of one trellis. The lower 8 - B bits of a state come from earlier symbols, and its upper B
// bits are the branch.
class TrellisCells {
 public:
  explicit TrellisCells(const TrellisTable& table);

  const BranchCells& of(int older) const { return cells_[older]; }
  // Returns the cells of the branches whose n_known upper bits have the value `known`; 1 <= n_known < B.
  BranchCells with_known(int older, int n_known, int known) const;

 private:
  template <class Accept>
  BranchCells cells_of(int older, const Accept& accept) const;

  const TrellisTable& table_;
  std::vector<BranchCells> cells_;  // [2^(8 - B)]
};

// Returns the cells for B = `bits`, from 1 to 6.
const TrellisCells& trellis_cells(int bits);

}  // namespace kvant
