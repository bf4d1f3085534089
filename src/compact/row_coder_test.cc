#include "compact/row_coder.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <numeric>
#include <random>

#include "compact/trellis_page.h"
#include "format/trellis_encoder.h"

namespace kvant {
namespace {

constexpr int kD = 64, kRows = 64;

// Holds rows of the trellis of B bits, for values that are normally distributed around a known prediction.
struct Rows {
  Rows(int bits, double deviation, unsigned seed) : bits(bits) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal;
    std::vector<float> values(kRows * kD);
    for (float& x : values) {
      expected.push_back(normal(random) * std::sqrt(1 - deviation * deviation));
      x = static_cast<float>(expected.back() + normal(random) * deviation);
    }
    symbols.resize(values.size());
    TrellisEncoder(trellis_tables()[bits - 1]).encode(values.data(), kRows, kD, symbols.data());
  }
  int bits;
  std::vector<double> expected;  // in standard deviations of the values
  std::vector<std::uint16_t> symbols;
};

constexpr std::int32_t kUnit = 1 << 20;  // the value 1, in 1 / 2^kGainBits

struct Buffers {
  std::array<std::int32_t, kD> values, steps;
  std::vector<std::int16_t> follow = std::vector<std::int16_t>(kD * kD, 0);
  ExpectedRow row(const Rows& rows, int r, double deviation) {
    for (int i = 0; i < kD; ++i) {
      values[i] = static_cast<std::int32_t>(rows.expected[r * kD + i] * kUnit);
      steps[i] = static_cast<std::int32_t>(kStepsOfDeviation * 0x1p32 / (deviation * kUnit));
      for (int j = i + 1; j < kD; ++j)
        follow[i * kD + j] = static_cast<std::int16_t>((i * 7 + j * 13) % 400 - 200);
    }
    const double scale = trellis_tables()[rows.bits - 1].scale;
    return {values.data(), steps.data(), follow.data(), static_cast<std::int32_t>(scale * kUnit)};
  }
};

// Returns how many bits a writer uses for all rows.
double written_bits(const Rows& rows, double deviation, SymbolWriter& writer) {
  Buffers buffers;
  double ideal = 0;
  for (int r = 0; r < kRows; ++r) {
    std::array<std::uint32_t, kD> firsts, sizes;
    const std::uint16_t* symbols = rows.symbols.data() + r * kD;
    write_row(trellis_cells(rows.bits), rows.bits, kD, symbols, buffers.row(rows, r, deviation),
              firsts.data(), sizes.data());
    writer.put_bits(static_cast<std::uint32_t>(bits_before(rows.bits, kD, symbols)),
                    kTrellisBits - rows.bits);
    ideal += kTrellisBits - rows.bits;
    for (int i = 0; i < kD; ++i) {
      writer.put(firsts[i], sizes[i]);
      ideal += std::log2(static_cast<double>(kWholeInterval) / sizes[i]);
    }
  }
  return ideal;
}

class RowCoder : public ::testing::TestWithParam<int> {};

TEST_P(RowCoder, GivesBackTheSymbolsAndTakesTheirBits) {
  const Rows rows(GetParam(), 0.5, 5);
  SymbolWriter writer;
  const double ideal = written_bits(rows, 0.5, writer);
  const auto bytes = writer.take();
  EXPECT_LT(8.0 * static_cast<double>(bytes.size()),
            1.01 * ideal + 64);  // The allowance covers the bits of a state.
  SymbolReader reader(bytes);
  Buffers buffers;
  for (int r = 0; r < kRows; ++r) {
    std::array<std::uint16_t, kMaxHeadDim> symbols;
    const ExpectedRow row = buffers.row(rows, r, 0.5);
    read_rows(trellis_cells(rows.bits), rows.bits, kD, 1, &row, &reader, symbols.data());
    ASSERT_TRUE(std::equal(symbols.begin(), symbols.begin() + kD, rows.symbols.begin() + r * kD)) << r;
  }
  EXPECT_TRUE(reader.at_end());
}

// A prediction that leaves 1/4 of the variance saves nearly one bit per value, if a value has that bit to
// save.
TEST_P(RowCoder, SavesWhatThePredictionIsWorth) {
  const Rows rows(GetParam(), 0.5, 6);
  SymbolWriter writer;
  Buffers none;
  double bits = 0;
  for (int r = 0; r < kRows; ++r) {
    std::array<std::uint32_t, kD> firsts, sizes;
    ExpectedRow row = none.row(rows, r, 0.5);
    std::fill(none.follow.begin(), none.follow.end(), 0);
    write_row(trellis_cells(rows.bits), rows.bits, kD, rows.symbols.data() + r * kD, row, firsts.data(),
              sizes.data());
    for (int i = 0; i < kD; ++i) bits += std::log2(static_cast<double>(kWholeInterval) / sizes[i]);
  }
  const double saved = rows.bits - bits / (kRows * kD);
  EXPECT_GT(saved, rows.bits == 1 ? 0.2 : rows.bits == 2 ? 0.55 : 0.75);
  EXPECT_LT(saved, rows.bits < 5 ? 1.05 : 1.4);  // With few states, other effects save bits too.
}

TEST_P(RowCoder, FourRowsAtOnceAreTheSame) {
  const Rows rows(GetParam(), 0.5, 7);
  std::array<SymbolWriter, kRowLanes> writers;
  std::array<std::vector<std::byte>, kRowLanes> bytes;
  std::array<SymbolReader, kRowLanes> readers;
  std::array<Buffers, kRowLanes> buffers;
  std::array<ExpectedRow, kRowLanes> expected;
  for (int lane = 0; lane < kRowLanes; ++lane) {
    std::array<std::uint32_t, kD> firsts, sizes;
    const std::uint16_t* symbols = rows.symbols.data() + lane * kD;
    write_row(trellis_cells(rows.bits), rows.bits, kD, symbols, buffers[lane].row(rows, lane, 0.5),
              firsts.data(), sizes.data());
    writers[lane].put_bits(static_cast<std::uint32_t>(bits_before(rows.bits, kD, symbols)),
                           kTrellisBits - rows.bits);
    for (int i = 0; i < kD; ++i) writers[lane].put(firsts[i], sizes[i]);
    bytes[lane] = writers[lane].take();
    readers[lane] = SymbolReader(bytes[lane]);
    expected[lane] = buffers[lane].row(rows, lane, 0.5);
  }
  std::array<std::uint16_t, kRowLanes * kMaxHeadDim> symbols;
  read_rows(trellis_cells(rows.bits), rows.bits, kD, kRowLanes, expected.data(), readers.data(),
            symbols.data());
  for (int lane = 0; lane < kRowLanes; ++lane) {
    EXPECT_TRUE(std::equal(rows.symbols.begin() + lane * kD, rows.symbols.begin() + (lane + 1) * kD,
                           symbols.begin() + lane * kMaxHeadDim));
    EXPECT_TRUE(readers[lane].at_end());
  }
}

// These sizes are part of the file format and must be the same on every machine.
TEST(BranchCells, AreTheSameEverywhere) {
  std::uint64_t hash = 0;
  for (int bits = 1; bits <= kMaxTrellisBits; ++bits) {
    for (int older = 0; older < 1 << (kTrellisBits - bits); ++older) {
      const BranchCells& cells = trellis_cells(bits).of(older);
      ASSERT_EQ(cells.n, 1 << bits);
      std::uint32_t end = 0;
      for (int i = 0; i < cells.n; ++i) {
        const ValueScale scale{std::int64_t{10} << kFineBits, std::int64_t{123} << kFineBits};
        const NormalShares& shares = kNormalShares[bits - 1];
        ASSERT_EQ(cell_start(cells, shares, i, scale), end);
        end = cell_start(cells, shares, i + 1, scale);
        ASSERT_GT(end, cell_start(cells, shares, i, scale));
        hash = (hash ^ end) * 0x100000001b3;
      }
      ASSERT_EQ(end, kWholeInterval);
    }
  }
  EXPECT_EQ(hash, 10200591307393677500U);
}

INSTANTIATE_TEST_SUITE_P(Bits, RowCoder, ::testing::Range(1, kMaxTrellisBits + 1));

}  // namespace
}  // namespace kvant
