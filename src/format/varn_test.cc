#include <algorithm>
#include <cstdio>

#include "format/test_pages.h"

namespace kvant::varn_test {
namespace {

constexpr const char* kVarnPattern = "vch<B>[m]|vtok<B>[m]";

struct Shape {
  int bits = 0;
  bool by_channel = false, mended = false;

  explicit Shape(const std::string& name) {
    by_channel = name.starts_with("vch");
    std::sscanf(name.c_str() + (by_channel ? 3 : 4), "%d", &bits);
    mended = name.back() == 'm';
  }
};

using Matrix = std::vector<std::vector<double>>;  // [rows][columns]

Matrix transposed(const Matrix& m) {
  Matrix result(m[0].size(), std::vector<double>(m.size()));
  for (std::size_t i = 0; i < m.size(); ++i)
    for (std::size_t j = 0; j < m[0].size(); ++j) result[j][i] = m[i][j];
  return result;
}

// Returns the tile of a page, with a row for each channel (vch) or each token (vtok).
Matrix tile_of(const std::vector<float>& values, int d, bool by_channel) {
  Matrix tokens(kPageTokens, std::vector<double>(d));
  for (int token = 0; token < kPageTokens; ++token)
    for (int i = 0; i < d; ++i) tokens[token][i] = values[token * d + i];
  return by_channel ? transposed(tokens) : tokens;
}

std::vector<double> row_deviations(const Matrix& m) {
  std::vector<double> found;
  for (const std::vector<double>& row : m) {
    double mean = 0, squares = 0;
    for (const double x : row) mean += x / static_cast<double>(row.size());
    for (const double x : row) squares += (x - mean) * (x - mean);
    found.push_back(std::sqrt(squares / static_cast<double>(row.size() - 1)));
  }
  return found;
}

double spread(const std::vector<double>& of) {
  return *std::ranges::max_element(of) / std::max(*std::ranges::min_element(of), 1e-8);
}

double imbalance(const Matrix& y) {
  return spread(row_deviations(transposed(y))) + spread(row_deviations(y));
}

struct Scales {
  std::vector<double> rows, columns;
};

Matrix scaled(const Matrix& x, const Scales& scales) {
  Matrix y = x;
  for (std::size_t r = 0; r < y.size(); ++r)
    for (std::size_t c = 0; c < y[r].size(); ++c) y[r][c] /= scales.rows[r] * scales.columns[c];
  return y;
}

// Follows KVarN's description step by step, with the scales instead of their logarithms.
Scales balance(const Matrix& x) {
  Scales now{std::vector<double>(x.size(), 1), std::vector<double>(x[0].size(), 1)}, best = now;
  double least = imbalance(x);
  const auto multiply = [](std::vector<double>& scales, const std::vector<double>& deviations) {
    for (std::size_t i = 0; i < scales.size(); ++i) {
      const double factor = std::min(std::max(deviations[i], 1e-3), 1e3);
      scales[i] = std::min(std::max(scales[i] * factor, std::exp(-0.3)), std::exp(10.0));
    }
  };
  for (int round = 0; round < 8; ++round) {
    multiply(now.columns, row_deviations(transposed(scaled(x, now))));
    multiply(now.rows, row_deviations(scaled(x, now)));
    const double found = imbalance(scaled(x, now));
    if (found > least) continue;
    least = found;
    best = now;
  }
  return best;
}

double root_mean_square(const Matrix& x) {
  double squares = 0, n = 0;
  for (const std::vector<double>& row : x)
    for (const double value : row) squares += value * value, ++n;
  return std::sqrt(squares / n);
}

double clip_of(int bits) {
  return bits == 2 ? 1.4936 : bits == 3 ? 2.0510 : 2.5140;
}

struct Grid {
  double low, step;
};

Grid designed_grid(const std::vector<double>& y, const Shape& shape) {
  double low = *std::ranges::min_element(y), high = *std::ranges::max_element(y);
  if (shape.mended) {
    double mean = 0, squares = 0;
    const auto n = static_cast<double>(y.size());
    for (const double value : y) mean += value / n;
    for (const double value : y) squares += (value - mean) * (value - mean) / n;
    low = mean - clip_of(shape.bits) * std::sqrt(squares);
    high = mean + clip_of(shape.bits) * std::sqrt(squares);
  }
  return {low, std::max((high - low) / ((1 << shape.bits) - 1), 1e-10)};
}

// The imbalance of a tile does not change if all rows grow and all columns shrink. Rounding then decides
// which of several rounds wins, so the test compares factors of columns with each other. The grid of a row
// follows from the columns' factors, because the row's own scale cancels.
void check_page(const TestFormat& test, const std::vector<float>& values) {
  const Shape shape(test.format().name());
  const int d = test.d();
  const std::vector<std::byte> page = test.encode(values);
  const std::vector<float> decoded = test.decode(page);
  Matrix x = tile_of(values, d, shape.by_channel);
  const double unit = shape.mended ? root_mean_square(x) : 1;
  for (std::vector<double>& row : x)
    for (double& value : row) value /= unit;
  const Scales scales = balance(x);
  const int rows = static_cast<int>(x.size()), columns = static_cast<int>(x[0].size());
  const std::byte* parameters = page.data() + kPageTokens * d * shape.bits / 8;
  const auto stored = [&](int at) { return f16_at(parameters + 2 * at); };
  const auto factor_of = [&](int column) { return stored(2 * rows + column); };
  for (int column = 0; column < columns; ++column) {
    const double ratio = factor_of(column) / factor_of(0),
                 designed = scales.columns[column] / scales.columns[0];
    ASSERT_NEAR(ratio, designed, 2e-3 * designed) << "column " << column;
  }
  for (int row = 0; row < rows; ++row) {
    std::vector<double> y = x[row];
    for (int column = 0; column < columns; ++column) y[column] *= unit / factor_of(column);
    const Grid grid = designed_grid(y, shape);
    const double reach = std::fabs(grid.low) + ((1 << shape.bits) - 1) * grid.step;
    ASSERT_NEAR(stored(row), grid.step, 2e-3 * reach);
    ASSERT_NEAR(stored(rows + row), grid.low, 2e-3 * reach);
    for (int column = 0; column < columns; ++column) {
      const int at = shape.by_channel ? column * d + row : row * d + column;
      const int code = code_from_stream(page.data(), at, shape.bits);
      const double position = (y[column] - stored(rows + row)) / stored(row);
      const double inside = std::clamp(position, 0.0, (1 << shape.bits) - 1.0);
      ASSERT_LE(std::fabs(inside - code), 0.5 + 2e-3 * reach / grid.step);
      const double value = (code * stored(row) + stored(rows + row)) * factor_of(column);
      ASSERT_NEAR(decoded[at], value, 1e-5 * reach * factor_of(column));
    }
  }
}

// Returns the error energy relative to the energy of the values, averaged over pages.
template <class Values>
double relative_error(const std::string& format, int d, const Values& values_of) {
  constexpr int kPages = 6;
  const TestFormat test(format, d);
  double sum = 0;
  for (unsigned seed = 1; seed <= kPages; ++seed) {
    const std::vector<float> values = values_of(seed);
    sum += std::pow(relative_rms_error(values, test.decode(test.encode(values))), 2);
  }
  return sum / kPages;
}

// Returns normal values whose tokens have log-normal sizes with a sigma of 0.5, or whose channels do.
std::vector<float> uneven_values(int d, unsigned seed, bool tokens_differ, double size) {
  std::vector<float> values = gaussian_values(d, seed);
  const std::vector<float> logs = normal_numbers(std::max(d, kPageTokens), seed + 100);
  double squares = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] *= std::exp(0.5F * logs[tokens_differ ? i / d : i % d]);
    squares += double{values[i]} * values[i];
  }
  const double factor = size / std::sqrt(squares / static_cast<double>(values.size()));
  for (float& value : values) value *= static_cast<float>(factor);
  return values;
}

TEST(VarianceNormalizedPages, TakeTheBitsThatKvarnPrints) {
  for (const std::string& name : members_of(kVarnPattern)) {
    const Shape shape(name);
    for (const int d : kTestHeadDims) {
      const double parameters = shape.by_channel ? 0.25 + 16.0 / d : 32.0 / d + 0.125;
      EXPECT_DOUBLE_EQ(find_format(name)->bits(d), shape.bits + parameters) << name << ", d = " << d;
    }
  }
  EXPECT_DOUBLE_EQ((find_format("vch4")->bits(128) + find_format("vtok2")->bits(128)) / 2, 3.375);
  EXPECT_DOUBLE_EQ(find_format("vch4")->bits(64), 4.5);
  EXPECT_DOUBLE_EQ(find_format("vtok2")->bits(64), 2.625);
}

TEST(VarianceNormalizedPages, FollowTheDescriptionInDoublePrecision) {
  for (const std::string& name : members_of(kVarnPattern)) {
    for (const int d : kTestHeadDims) {
      const TestFormat test(name, d);
      SCOPED_TRACE(test.label());
      check_page(test, key_like_values(d, 1));
      check_page(test, uneven_values(d, 2, true, 2));
      check_page(test, uneven_values(d, 3, false, 0.05));
      if (HasFatalFailure()) return;
    }
  }
}

// An independent simulation gave these errors for standard normal values at 2, 3 and 4 bits.
TEST(VarianceNormalizedPages, LeaveTheSimulatedErrorOnGaussianValues) {
  const struct {
    const char* family;
    int d;
    double errors[3];
  } expected[] = {{"vch", 128, {0.247, 0.0450, 0.0098}},
                  {"vch", 64, {0.242, 0.0443, 0.0096}},
                  {"vtok", 64, {0.200, 0.0366, 0.0080}}};
  for (const auto& row : expected) {
    for (int bits = 2; bits <= 4; ++bits) {
      const auto gaussian = [&](unsigned seed) { return gaussian_values(row.d, seed); };
      const double error = relative_error(row.family + std::to_string(bits), row.d, gaussian);
      EXPECT_NEAR(error, row.errors[bits - 2], 0.03 * row.errors[bits - 2]) << row.family << bits << row.d;
    }
  }
}

// Normalization removes what tokens of unequal sizes cost, but not if values are small, because the logarithm
// of a scale cannot fall below -0.3. Dividing by the tile's size mends this, and clipping removes half of the
// rest.
TEST(VarianceNormalizedPages, HelpLargeValuesAndNeedTheMendedVariantForSmallOnes) {
  const auto error = [](const char* format, bool tokens_differ, double size) {
    return relative_error(format, 128,
                          [=](unsigned seed) { return uneven_values(128, seed, tokens_differ, size); });
  };
  EXPECT_NEAR(error("vch2", true, 2), 0.246, 0.01);
  EXPECT_NEAR(error("ch2g128", true, 2), 0.464, 0.03);
  EXPECT_NEAR(error("vch2", true, 0.05), 0.470, 0.03);
  EXPECT_NEAR(error("vtok2", true, 0.05), 0.249, 0.01);
  EXPECT_NEAR(error("vtok2", false, 0.05), 0.488, 0.03);
  EXPECT_NEAR(error("vtok2", false, 2), 0.243, 0.01);
  for (const double size : {0.05, 2.0}) {
    EXPECT_NEAR(error("vch2m", true, size), 0.115, 0.004) << size;
    EXPECT_NEAR(error("vch3m", true, size), 0.036, 0.0015) << size;
  }
}

TEST(VarianceNormalizedPages, LeaveTokensOutOfEveryStatistic) {
  for (const std::string& name : members_of(kVarnPattern)) {
    const TestFormat test(name, 64);
    std::vector<float> values = gaussian_values(64, 5);
    TokenMask left_out;
    for (int token = 0; token < 28; ++token) left_out.set(token);
    for (int i = 0; i < 28 * 64; ++i) values[i] *= 1e4F;
    const std::vector<float> decoded = test.decode(test.encode(values, left_out));
    double error = 0, energy = 0;
    for (std::size_t i = std::size_t{28} * 64; i < values.size(); ++i) {
      error += std::pow(double{values[i]} - decoded[i], 2);
      energy += double{values[i]} * values[i];
    }
    EXPECT_LT(error / energy, 0.26) << name;
  }
}

TEST(VarianceNormalizedPages, RefuseOtherNames) {
  for (const char* unknown : {"vch1", "vch5", "vtok", "vtok2mm", "vch2g128"})
    EXPECT_EQ(find_format(unknown), nullptr) << unknown;
}

}  // namespace
}  // namespace kvant::varn_test
