#include "compact/row_coder.h"

#include <algorithm>
#include <bit>

#include "base/simd_clones.h"
#include "compact/trellis_page.h"

namespace kvant {
namespace {

constexpr std::int32_t kLargestSurprise = 32767;  // units

// The values behind channel i, once it is known: d is a multiple of 8, and of i and those before nothing
// follows for themselves. Sums may wrap around where nothing is plausible.
inline void follow_from(const ExpectedRow& row, int i, int d, std::int32_t known) {
  const auto surprise = static_cast<std::int32_t>(std::clamp<std::int64_t>(
      (std::int64_t{known} - row.values[i]) >> kGainBits, -kLargestSurprise, kLargestSurprise));
  const std::int16_t* follow = row.follow + static_cast<std::ptrdiff_t>(i) * d;
  for (int j = i / 8 * 8; j < d; ++j) {
    const std::int32_t more = surprise * follow[j] >> (kFollowBits - kGainBits);
    row.values[j] = static_cast<std::int32_t>(static_cast<std::uint32_t>(row.values[j]) +
                                              static_cast<std::uint32_t>(more));
  }
}

// Of symbol i's B bits those that are known before it comes, since the row is circular: they are among the
// 8 - B bits that came first.
inline int known_bits(int bits, int d, int i) {
  return std::clamp((i + 1) * bits - (d * bits - (kTrellisBits - bits)), 0, bits);
}
// Their value, from the bits that came first.
inline int known_of(int bits, int d, int i, int before, int n_known) {
  const int first = std::max(i * bits - (d * bits - (kTrellisBits - bits)), 0);
  return before >> first & ((1 << n_known) - 1);
}

struct Cell {
  std::uint32_t first, size;
};
inline Cell cell_of(const BranchCells& cells, int rank, std::int32_t expected, const ValueScale& scale) {
  const std::uint32_t first = cell_start(cells, rank, expected, scale);
  return {first, cell_start(cells, rank + 1, expected, scale) - first};
}

// The cell that holds the point.
inline int rank_at(const BranchCells& cells, std::uint32_t point, std::int32_t expected,
                   const ValueScale& scale) {
  int rank = 0;
  for (int half = cells.n / 2; half > 0; half /= 2)
    if (cell_start(cells, rank + half, expected, scale) <= point) rank += half;
  return rank;
}

}  // namespace

KVANT_SIMD_CLONES std::int64_t write_row(const TrellisCells& cells, int bits, int d,
                                         const std::uint16_t* symbols, const ExpectedRow& row,
                                         std::uint32_t* firsts, std::uint32_t* sizes) {
  const TrellisTable& table = trellis_tables()[bits - 1];
  const int before = bits_before(bits, d, symbols);
  std::int64_t cost = kTrellisBits - bits;
  for (int i = 0, older = before; i < d; ++i) {
    const ValueScale scale{row.gain, row.steps[i]};
    const int n_known = known_bits(bits, d, i), symbol = symbols[i];
    Cell cell{0, kWholeInterval};
    if (n_known == 0) {
      const BranchCells& all = cells.of(older);
      cell = cell_of(all, all.ranks[symbol], row.values[i], scale);
    } else if (n_known < bits) {
      const BranchCells some = cells.with_known(older, n_known, symbol >> (bits - n_known));
      cell = cell_of(some, some.ranks[symbol], row.values[i], scale);
    }
    firsts[i] = cell.first;
    sizes[i] = cell.size;
    cost += kProbabilityBits + 1 - std::bit_width(cell.size);
    const int state = symbol << (kTrellisBits - bits) | older;
    older = state >> bits;
    follow_from(row, i, d, table.levels[state] * row.gain);
  }
  return cost;
}

KVANT_SIMD_CLONES std::int64_t row_surprise(int bits, int d, const std::uint16_t* symbols,
                                            const ExpectedRow& row) {
  const TrellisTable& table = trellis_tables()[bits - 1];
  std::int64_t sum = 0;
  for (int i = 0, older = bits_before(bits, d, symbols); i < d; ++i) {
    const int state = symbols[i] << (kTrellisBits - bits) | older;
    older = state >> bits;
    const std::int32_t value = table.levels[state] * row.gain;
    const std::int64_t distance = (std::int64_t{value} - row.values[i]) * row.steps[i] >> 32;
    sum += distance < 0 ? -distance : distance;
    follow_from(row, i, d, value);
  }
  return sum;
}

KVANT_SIMD_CLONES void read_row(const TrellisCells& cells, int bits, int d, const ExpectedRow& row,
                                SymbolReader& from, std::uint16_t* symbols) {
  const TrellisTable& table = trellis_tables()[bits - 1];
  const int before = bits < kTrellisBits ? static_cast<int>(from.bits(kTrellisBits - bits)) : 0;
  for (int i = 0, older = before; i < d; ++i) {
    const ValueScale scale{row.gain, row.steps[i]};
    const int n_known = known_bits(bits, d, i);
    int symbol;
    if (n_known == bits) {
      symbol = known_of(bits, d, i, before, bits);
    } else {
      BranchCells some;
      const BranchCells* among = &cells.of(older);
      if (n_known > 0) {
        some = cells.with_known(older, n_known, known_of(bits, d, i, before, n_known));
        among = &some;
      }
      const int rank = rank_at(*among, from.point(), row.values[i], scale);
      const Cell cell = cell_of(*among, rank, row.values[i], scale);
      from.pass(cell.first, cell.size);
      symbol = among->branches[rank];
    }
    symbols[i] = static_cast<std::uint16_t>(symbol);
    const int state = symbol << (kTrellisBits - bits) | older;
    older = state >> bits;
    follow_from(row, i, d, table.levels[state] * row.gain);
  }
}

}  // namespace kvant
