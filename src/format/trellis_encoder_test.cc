#include "format/trellis_encoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace kvant {
namespace {

std::vector<float> gaussian_rows(int n_rows, int n, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(n_rows) * n);
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<std::uint16_t> encode(const TrellisTable& table, const std::vector<float>& values, int n,
                                  const ViterbiKernel& kernel = best_viterbi()) {
  std::vector<std::uint16_t> symbols(values.size());
  TrellisEncoder(table, kernel).encode(values.data(), static_cast<int>(values.size()) / n, n, symbols.data());
  return symbols;
}

// Returns the state of value i of a row by definition. The state is the 8 bits that end with the value's
// symbol, circularly.
int state_of(const TrellisTable& table, const std::uint16_t* symbols, int n, int i) {
  int state = 0;
  for (int bit = 0; bit < kTrellisBits; ++bit) {
    const int at = ((i + 1) * table.bits - kTrellisBits + bit + n * table.bits) % (n * table.bits);
    state |= (symbols[at / table.bits] >> (at % table.bits) & 1) << bit;
  }
  return state;
}

double squared_error(const TrellisTable& table, float x, int state) {
  return std::pow(x - static_cast<double>(table.levels[state]) * table.scale, 2);
}

double squared_error(const TrellisTable& table, const float* values, const std::uint16_t* symbols, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += squared_error(table, values[i], state_of(table, symbols, n, i));
  return sum;
}

// Returns the least squared error of all paths through the seam. The state before value 0 and the last state
// of such a path have the seam as their top 8 - B bits. The Viterbi algorithm runs over all 256 states in
// double precision.
double least_error_through(const TrellisTable& table, const float* values, int n, int seam) {
  const int kept = kTrellisBits - table.bits;  // bits of a state that its successor keeps
  std::vector<double> errors(kTrellisStates, std::numeric_limits<double>::infinity());
  errors[seam >> table.bits << table.bits] = 0;
  for (int i = 0; i < n; ++i) {
    std::vector<double> next(kTrellisStates, std::numeric_limits<double>::infinity());
    for (int from = 0; from < kTrellisStates; ++from) {
      for (int symbol = 0; symbol < 1 << table.bits; ++symbol) {
        const int to = symbol << kept | from >> table.bits;
        next[to] = std::min(next[to], errors[from] + squared_error(table, values[i], to));
      }
    }
    errors = next;
  }
  double least = std::numeric_limits<double>::infinity();
  for (int state = 0; state < kTrellisStates; ++state)
    if (state >> table.bits == seam >> table.bits) least = std::min(least, errors[state]);
  return least;
}

double least_error(const TrellisTable& table, const float* values, int n) {
  double least = std::numeric_limits<double>::infinity();
  for (int seam = 0; seam < kTrellisStates; seam += 1 << table.bits)
    least = std::min(least, least_error_through(table, values, n, seam));
  return least;
}

TEST(TrellisEncoder, ComesWithinOnePercentOfTheBestPathThroughItsSeam) {
  for (const TrellisTable& table : trellis_tables()) {
    constexpr int kRows = 96, kValues = 64;
    const std::vector<float> values = gaussian_rows(kRows, kValues, 1);
    const std::vector<std::uint16_t> symbols = encode(table, values, kValues);
    double error = 0, best = 0;
    for (int row = 0; row < kRows; ++row) {
      const float* x = values.data() + row * kValues;
      const std::uint16_t* of_row = symbols.data() + row * kValues;
      error += squared_error(table, x, of_row, kValues);
      best += least_error_through(table, x, kValues, state_of(table, of_row, kValues, kValues - 1));
    }
    EXPECT_LT(error, 1.01 * best) << table.bits;
    EXPECT_GE(error, best * (1 - 1e-9)) << table.bits;
  }
}

TEST(TrellisEncoder, ComesNearTheBestOfAllCircularPaths) {
  for (const TrellisTable& table : trellis_tables()) {
    constexpr int kRows = 8, kValues = 64;
    const std::vector<float> values = gaussian_rows(kRows, kValues, 2);
    const std::vector<std::uint16_t> symbols = encode(table, values, kValues);
    double error = 0, best = 0;
    for (int row = 0; row < kRows; ++row) {
      error += squared_error(table, values.data() + row * kValues, symbols.data() + row * kValues, kValues);
      best += least_error(table, values.data() + row * kValues, kValues);
    }
    EXPECT_LT(error, 1.05 * best) << table.bits;
  }
}

TEST(TrellisEncoder, ErrsNoMoreAtTheSeamThanElsewhere) {
  for (const TrellisTable& table : trellis_tables()) {
    constexpr int kRows = 512, kValues = 64, kNear = 4;
    std::vector<float> values = gaussian_rows(kRows, kValues, 3);
    for (float& x : values) x = std::clamp(x, -2.0F, 2.0F);  // A few outliers would dominate the error.
    const std::vector<std::uint16_t> symbols = encode(table, values, kValues);
    double near = 0, elsewhere = 0;
    for (int row = 0; row < kRows; ++row) {
      for (int i = 0; i < kValues; ++i) {
        const int state = state_of(table, symbols.data() + row * kValues, kValues, i);
        const double error = squared_error(table, values[row * kValues + i], state);
        (i < kNear || i >= kValues - kNear ? near : elsewhere) += error;
      }
    }
    EXPECT_LT(near / (2 * kNear), 1.1 * elsewhere / (kValues - 2 * kNear)) << table.bits;
  }
}

// Lloyd-Max (1960) is the optimum for values that are quantized separately, and 4^-B is Shannon's bound.
TEST(TrellisEncoder, LeavesLessThanTheBestScalarQuantizerOnGaussianValues) {
  const double scalar[] = {0.3634, 0.1175, 0.03454, 0.009497, 0.002499, 0.000644};
  for (const TrellisTable& table : trellis_tables()) {
    constexpr int kRows = 1024, kValues = 64;
    const std::vector<float> values = gaussian_rows(kRows, kValues, 4);
    const std::vector<std::uint16_t> symbols = encode(table, values, kValues);
    double error = 0, energy = 0;
    for (int row = 0; row < kRows; ++row)
      error += squared_error(table, values.data() + row * kValues, symbols.data() + row * kValues, kValues);
    for (const float x : values) energy += double{x} * x;
    // The trellis gains little at 1 bit, and little at 6 bits, where a state keeps only 2 bits of earlier
    // values.
    const double limits[] = {0.92, 0.7, 0.7, 0.7, 0.8, 0.95};
    EXPECT_LT(error / energy, limits[table.bits - 1] * scalar[table.bits - 1]) << table.bits << " bits";
    EXPECT_GT(error / energy, std::pow(4.0, -table.bits)) << table.bits << " bits";
  }
}

// Returns rows that are far from Gaussian. Their root mean square is 1, or 0.
std::vector<float> unusual_rows(int n) {
  std::vector<float> rows;
  const auto add = [&](auto value_of) {
    for (int i = 0; i < n; ++i) rows.push_back(value_of(i));
  };
  add([](int) { return 0.0F; });
  add([](int) { return 1.0F; });
  add([](int) { return -1.0F; });
  add([](int i) { return i % 2 == 0 ? 1.0F : -1.0F; });
  const auto alone = static_cast<float>(std::sqrt(n));
  add([&](int i) { return i == n / 2 ? alone : 0.0F; });
  add([&](int i) { return i == n - 1 ? -alone : 0.0F; });
  add([&](int i) { return i == 0 || i == 1 ? alone / 1.41421356F : 0.0F; });
  add([&](int i) { return i < n / 16 ? 4.0F : 0.0F; });
  return rows;
}

// The bins cause an excess, because every value of a constant row errs in the same direction, by up to half a
// bin.
TEST(TrellisEncoder, ComesNearTheBestPathOfUnusualRows) {
  for (const TrellisTable& table : trellis_tables()) {
    for (const int n : {16, 80}) {
      const std::vector<float> values = unusual_rows(n);
      const std::vector<std::uint16_t> symbols = encode(table, values, n);
      for (std::size_t first = 0; first < values.size(); first += n) {
        const int seam = state_of(table, symbols.data() + first, n, n - 1);
        const double best = least_error_through(table, values.data() + first, n, seam);
        const double error = squared_error(table, values.data() + first, symbols.data() + first, n);
        EXPECT_LE(error, 1.2 * best) << table.bits << " bits, row " << first / n << " of " << n << " values";
      }
    }
  }
}

TEST(TrellisEncoder, FindsTheSamePathsWithEveryInstructionSet) {
  if (&best_viterbi() == &portable_viterbi()) GTEST_SKIP() << "this machine runs the portable code only";
  for (const TrellisTable& table : trellis_tables()) {
    for (const int n : {16, 64, 80, 256, 512}) {
      std::vector<float> values = unusual_rows(n);
      // With these 29 rows, the number of rows is odd.
      const std::vector<float> gaussian = gaussian_rows(29, n, 5);
      values.insert(values.end(), gaussian.begin(), gaussian.end());
      EXPECT_EQ(encode(table, values, n), encode(table, values, n, portable_viterbi()))
          << table.bits << " bits, " << n << " values";
    }
  }
}

}  // namespace
}  // namespace kvant
