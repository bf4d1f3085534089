#include "format/trellis.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "format/bit_packing.h"

namespace kvant {
namespace {

std::vector<float> gaussian_rows(int n, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(kTrellisRows) * n);
  for (float& value : values) value = normal(random);
  return values;
}

// The level that the symbols give to value i, by the definition: the last 8 of the symbols' bits, circular.
double level(const TrellisTable& table, const std::uint16_t* symbols, int n, int i) {
  int state = 0;
  for (int bit = 0; bit < kTrellisBits; ++bit) {
    const int at = ((i + 1) * table.bits - kTrellisBits + bit + n * table.bits) % (n * table.bits);
    state |= (symbols[at / table.bits] >> (at % table.bits) & 1) << bit;
  }
  return static_cast<double>(table.levels[state]) * table.scale;
}

double squared_error(const TrellisTable& table, const float* values, const std::uint16_t* symbols, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += std::pow(values[i] - level(table, symbols, n, i), 2);
  return sum;
}

TEST(Trellis, DecodesTheStateThatEndsAtEachValue) {
  for (const TrellisTable& table : trellis_tables()) {
    for (const int n : {16, 64, 80, 256}) {
      std::mt19937 random(static_cast<std::uint32_t>(n));
      std::vector<std::uint16_t> symbols(n);
      for (std::uint16_t& symbol : symbols)
        symbol = static_cast<std::uint16_t>(random() % (1U << table.bits));
      std::vector<std::byte> packed(packed_bytes(n, table.bits));
      pack_codes(symbols.data(), n, table.bits, packed.data());
      std::vector<float> shape(n);
      decode_trellis(packed.data(), n, table.bits, trellis_levels(table), shape.data());
      for (int i = 0; i < n; ++i) ASSERT_FLOAT_EQ(shape[i], level(table, symbols.data(), n, i)) << table.bits;
    }
  }
}

// No change of one symbol, or of two neighbours, may come nearer: what a local search can check of the best
// path that begins and ends in the state that the encoder chose.
TEST(Trellis, LeavesNoBetterNeighbouringPath) {
  constexpr int kValues = 16;
  for (const TrellisTable& table : trellis_tables()) {
    const std::vector<float> values = gaussian_rows(kValues, 3);
    std::vector<std::uint16_t> symbols(values.size());
    encode_trellis(values.data(), kValues, table, symbols.data());
    const int n_symbols = 1 << table.bits;
    const int fixed =
        (kTrellisBits + table.bits - 1) / table.bits;  // the last ones make the state at the seam
    for (int row = 0; row < kTrellisRows; ++row) {
      const float* x = values.data() + row * kValues;
      std::vector<std::uint16_t> other(symbols.begin() + row * kValues,
                                       symbols.begin() + (row + 1) * kValues);
      const double best = squared_error(table, x, other.data(), kValues);
      for (int i = 0; i + fixed + 1 < kValues; ++i) {
        const std::uint16_t kept[2] = {other[i], other[i + 1]};
        for (int trial = 0; trial < n_symbols * n_symbols; ++trial) {
          other[i] = static_cast<std::uint16_t>(trial % n_symbols);
          other[i + 1] = static_cast<std::uint16_t>(trial / n_symbols);
          ASSERT_GE(squared_error(table, x, other.data(), kValues), best * (1 - 1e-5));
        }
        other[i] = kept[0];
        other[i + 1] = kept[1];
      }
    }
  }
}

// Lloyd-Max (1960) is the best that values can do one by one, and 4^-B is Shannon's bound.
TEST(Trellis, LeavesLessThanTheBestScalarQuantizerOnGaussianValues) {
  const double scalar[] = {0.3634, 0.1175, 0.03454, 0.009497, 0.002499, 0.000644};
  for (const TrellisTable& table : trellis_tables()) {
    constexpr int kValues = 64;
    double error = 0;
    double energy = 0;
    for (std::uint32_t seed = 0; seed < 8; ++seed) {
      const std::vector<float> values = gaussian_rows(kValues, seed);
      std::vector<std::uint16_t> symbols(values.size());
      encode_trellis(values.data(), kValues, table, symbols.data());
      for (int row = 0; row < kTrellisRows; ++row)
        error += squared_error(table, values.data() + row * kValues, symbols.data() + row * kValues, kValues);
      for (const float x : values) energy += double{x} * x;
    }
    const double limit = table.bits < 5 ? 0.85 : 1.02;  // 8-bit states leave little memory to wide symbols
    EXPECT_LT(error / energy, limit * scalar[table.bits - 1]) << table.bits << " bits";
    EXPECT_GT(error / energy, std::pow(4.0, -table.bits)) << table.bits << " bits";
  }
}

}  // namespace
}  // namespace kvant
