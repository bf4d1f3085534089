#include "compact/row_coder.h"

#include <algorithm>
#include <array>
#include <bit>

#include "base/simd_clones.h"
#include "compact/trellis_page.h"

// Inlines a function into every SIMD clone of its caller, so the function uses that clone's instructions.
#define KVANT_ALWAYS_INLINE inline __attribute__((always_inline))

namespace kvant {
namespace {

constexpr std::int32_t kLargestSurprise = 32767;  // in units
constexpr int kSumBits = 16 - kFollowBits;        // Sums are in units of 2^kSumBits.

// Corrects the prediction of each channel by the errors of earlier channels. Sums may wrap around for
// implausible (damaged) input.
struct Follow {
  std::array<std::int16_t, kMaxHeadDim> sums;

  KVANT_ALWAYS_INLINE std::int32_t expected(const ExpectedRow& row, int i) const {
    return row.values[i] + std::int32_t{sums[i]} * (1 << (kSumBits + kGainBits));
  }
  // Updates the sums when channel i, whose prediction was `expected`, becomes known. Channels are processed
  // in blocks of kBlock, which divides d. The coefficients of channel i and of earlier channels are 0, so a
  // block may include them.
  template <int kBlock>
  KVANT_ALWAYS_INLINE void add(const ExpectedRow& row, int i, int d, std::int32_t known,
                               std::int32_t expected) {
    const auto surprise = static_cast<std::int16_t>(std::clamp<std::int64_t>(
        (std::int64_t{known} - expected) >> kGainBits, -kLargestSurprise, kLargestSurprise));
    const std::int16_t* follow = row.follow + static_cast<std::ptrdiff_t>(i) * d;
    for (int block = i / kBlock * kBlock; block < d; block += kBlock) {
      std::int16_t more[kBlock];
      for (int j = 0; j < kBlock; ++j)
        more[j] = static_cast<std::int16_t>(surprise * follow[block + j] >> 16);
      for (int j = 0; j < kBlock; ++j) sums[block + j] = static_cast<std::int16_t>(sums[block + j] + more[j]);
    }
  }
};

KVANT_ALWAYS_INLINE ValueScale scale_of(const ExpectedRow& row, int i, std::int32_t expected) {
  return {std::int64_t{row.gain} * row.steps[i] >> 1, std::int64_t{expected} * row.steps[i]};
}

// Returns how many of symbol i's B bits are known before the symbol is read. The row is circular, so these
// bits are among the first 8 - B bits.
inline int known_bits(int bits, int d, int i) {
  return std::clamp((i + 1) * bits - (d * bits - (kTrellisBits - bits)), 0, bits);
}
// Returns the value of the known bits, taken from the bits that came first.
inline int known_of(int bits, int d, int i, int before, int n_known) {
  const int first = std::max(i * bits - (d * bits - (kTrellisBits - bits)), 0);
  return before >> first & ((1 << n_known) - 1);
}

struct Cell {
  std::uint32_t first, size;
};
KVANT_ALWAYS_INLINE Cell cell_of(const BranchCells& cells, const NormalShares& shares, int rank,
                                 const ValueScale& scale) {
  const std::uint32_t first = cell_start(cells, shares, rank, scale);
  return {first, cell_start(cells, shares, rank + 1, scale) - first};
}

// Reads the symbol whose cell contains the reader's point, and returns its rank.
KVANT_ALWAYS_INLINE int read_cell(const BranchCells& cells, const NormalShares& shares,
                                  const ValueScale& scale, SymbolReader& from) {
  const std::uint32_t point = from.point();
  int rank = 0;
  std::uint32_t first = 0, end = kWholeInterval;
  for (int half = cells.n / 2; half > 0; half /= 2) {
    const std::uint32_t start = inner_start(cells, shares, rank + half, scale);
    const bool above = start <= point;
    rank += above ? half : 0;
    first = above ? start : first;
    end = above ? end : start;
  }
  from.pass(first, end - first);
  return rank;
}

template <int kBlock>
KVANT_ALWAYS_INLINE std::int64_t write_blocks(const TrellisCells& cells, int bits, int d,
                                              const std::uint16_t* symbols, const ExpectedRow& row,
                                              std::uint32_t* firsts, std::uint32_t* sizes) {
  const TrellisTable& table = trellis_tables()[bits - 1];
  const NormalShares& shares = kNormalShares[bits - 1];
  Follow follow;
  std::fill_n(follow.sums.begin(), d, 0);
  std::int64_t cost = kTrellisBits - bits;
  for (int i = 0, older = bits_before(bits, d, symbols); i < d; ++i) {
    const std::int32_t expected = follow.expected(row, i);
    const ValueScale scale = scale_of(row, i, expected);
    const int n_known = known_bits(bits, d, i), symbol = symbols[i];
    Cell cell{0, kWholeInterval};
    if (n_known == 0) {
      const BranchCells& all = cells.of(older);
      cell = cell_of(all, shares, all.ranks[symbol], scale);
    } else if (n_known < bits) {
      const BranchCells some = cells.with_known(older, n_known, symbol >> (bits - n_known));
      cell = cell_of(some, shares, some.ranks[symbol], scale);
    }
    firsts[i] = cell.first;
    sizes[i] = cell.size;
    cost += kProbabilityBits + 1 - std::bit_width(cell.size);
    const int state = symbol << (kTrellisBits - bits) | older;
    older = state >> bits;
    follow.add<kBlock>(row, i, d, table.levels[state] * row.gain, expected);
  }
  return cost;
}

template <int kBlock>
KVANT_ALWAYS_INLINE std::int64_t surprise_of(int bits, int d, const std::uint16_t* symbols,
                                             const ExpectedRow& row) {
  const TrellisTable& table = trellis_tables()[bits - 1];
  Follow follow;
  std::fill_n(follow.sums.begin(), d, 0);
  std::int64_t sum = 0;
  for (int i = 0, older = bits_before(bits, d, symbols); i < d; ++i) {
    const int state = symbols[i] << (kTrellisBits - bits) | older;
    older = state >> bits;
    const std::int32_t value = table.levels[state] * row.gain;
    const std::int32_t expected = follow.expected(row, i);
    const std::int64_t distance = (std::int64_t{value} - expected) * row.steps[i] >> kFineBits;
    sum += distance < 0 ? -distance : distance;
    follow.add<kBlock>(row, i, d, value, expected);
  }
  return sum;
}

// Rows are interleaved, so the processor works on one row while table lookups of another row are pending.
template <int kRows, int kBlock>
KVANT_ALWAYS_INLINE void read_side_by_side(const TrellisCells& cells, int bits, int d,
                                           const ExpectedRow* rows, SymbolReader* readers,
                                           std::uint16_t* symbols) {
  const TrellisTable& table = trellis_tables()[bits - 1];
  const NormalShares& shares = kNormalShares[bits - 1];
  SymbolReader from[kRows];
  Follow follow[kRows];
  int before[kRows], older[kRows];
  for (int r = 0; r < kRows; ++r) {
    from[r] = readers[r];
    std::fill_n(follow[r].sums.begin(), d, 0);
    before[r] = older[r] = static_cast<int>(from[r].bits(kTrellisBits - bits));
  }
  for (int i = 0; i < d; ++i) {
    const int n_known = known_bits(bits, d, i);
    for (int r = 0; r < kRows; ++r) {
      const std::int32_t expected = follow[r].expected(rows[r], i);
      const ValueScale scale = scale_of(rows[r], i, expected);
      int symbol;
      if (n_known == 0) {
        const BranchCells& all = cells.of(older[r]);
        symbol = all.branches[read_cell(all, shares, scale, from[r])];
      } else if (n_known == bits) {
        symbol = known_of(bits, d, i, before[r], bits);
      } else {
        const BranchCells some =
            cells.with_known(older[r], n_known, known_of(bits, d, i, before[r], n_known));
        symbol = some.branches[read_cell(some, shares, scale, from[r])];
      }
      symbols[r * kMaxHeadDim + i] = static_cast<std::uint16_t>(symbol);
      const int state = symbol << (kTrellisBits - bits) | older[r];
      older[r] = state >> bits;
      follow[r].template add<kBlock>(rows[r], i, d, table.levels[state] * rows[r].gain, expected);
    }
  }
  for (int r = 0; r < kRows; ++r) readers[r] = from[r];
}

constexpr int kWideBlock = 32,
              kNarrowBlock =
                  8;  // The wide block serves common head sizes, and the narrow block serves all of them.

template <int kBlock>
KVANT_ALWAYS_INLINE void read_blocks(const TrellisCells& cells, int bits, int d, int n,
                                     const ExpectedRow* rows, SymbolReader* from, std::uint16_t* symbols) {
  if (n == kRowLanes) return read_side_by_side<kRowLanes, kBlock>(cells, bits, d, rows, from, symbols);
  for (int r = 0; r < n; ++r)
    read_side_by_side<1, kBlock>(cells, bits, d, rows + r, from + r, symbols + r * kMaxHeadDim);
}

}  // namespace

KVANT_SIMD_CLONES std::int64_t write_row(const TrellisCells& cells, int bits, int d,
                                         const std::uint16_t* symbols, const ExpectedRow& row,
                                         std::uint32_t* firsts, std::uint32_t* sizes) {
  return d % kWideBlock == 0 ? write_blocks<kWideBlock>(cells, bits, d, symbols, row, firsts, sizes)
                             : write_blocks<kNarrowBlock>(cells, bits, d, symbols, row, firsts, sizes);
}

KVANT_SIMD_CLONES std::int64_t row_surprise(int bits, int d, const std::uint16_t* symbols,
                                            const ExpectedRow& row) {
  return d % kWideBlock == 0 ? surprise_of<kWideBlock>(bits, d, symbols, row)
                             : surprise_of<kNarrowBlock>(bits, d, symbols, row);
}

KVANT_SIMD_CLONES void read_rows(const TrellisCells& cells, int bits, int d, int n, const ExpectedRow* rows,
                                 SymbolReader* from, std::uint16_t* symbols) {
  d % kWideBlock == 0 ? read_blocks<kWideBlock>(cells, bits, d, n, rows, from, symbols)
                      : read_blocks<kNarrowBlock>(cells, bits, d, n, rows, from, symbols);
}

}  // namespace kvant
