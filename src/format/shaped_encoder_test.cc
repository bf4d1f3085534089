#include "format/shaped_encoder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "format/test_pages.h"

namespace kvant {
namespace {

// Searches in double precision take nearly all of the time of these tests.
constexpr int kSearchedRows = testing::kEmulated ? 40 : 400;

// Returns directions with a few strong ones, as real queries have.
std::vector<float> directions(int d, std::uint32_t seed) {
  std::vector<float> v = normal_numbers(static_cast<std::size_t>(d) * kMetricRank, seed);
  for (std::size_t i = 0; i < v.size(); ++i) v[i] *= 1.5F * std::exp2(-static_cast<float>(i % kMetricRank));
  return v;
}

// Computes e^T (1 + U U^T) e by its definition.
double cost_of(const std::vector<float>& v, const std::vector<double>& e) {
  double sum = 0;
  for (const double x : e) sum += x * x;
  for (int r = 0; r < kMetricRank; ++r) {
    double along = 0;
    for (std::size_t i = 0; i < e.size(); ++i) along += v[i * kMetricRank + r] * e[i];
    sum += along * along;
  }
  return sum;
}

std::vector<double> errors_of(const TrellisTable& table, const float* x, const std::uint16_t* symbols,
                              int n) {
  std::vector<double> errors;
  for (int i = 0; i < n; ++i) {
    int state = 0;
    for (int bit = 0; bit < kTrellisBits; ++bit) {
      const int at = ((i + 1) * table.bits - kTrellisBits + bit + n * table.bits) % (n * table.bits);
      state |= (symbols[at / table.bits] >> (at % table.bits) & 1) << bit;
    }
    errors.push_back(x[i] - static_cast<double>(table.levels[state]) * table.scale);
  }
  return errors;
}

TEST(ErrorMetric, SumsUpFilteredErrors) {
  constexpr int kValues = 24;
  const std::vector<float> v = directions(kValues, 1), e = normal_numbers(kValues, 2),
                           f = normal_numbers(kValues, 3);
  const ErrorMetric metric(v);
  double sum = 0;
  std::vector<double> along(kMetricRank, 0.0);
  for (int i = 0; i < kValues; ++i) {
    const FeedbackStep& step = metric.steps()[i];
    double filtered = e[i];
    for (int r = 0; r < kMetricRank; ++r) filtered += step.feedback[r] * along[r];
    sum += step.weight * filtered * filtered;
    for (int r = 0; r < kMetricRank; ++r) along[r] += step.directions[r] * e[i];
  }
  EXPECT_NEAR(sum, cost_of(v, {e.begin(), e.end()}), 1e-4 * sum);
  EXPECT_NEAR(metric.product(e.data(), e.data()), sum, 1e-4 * sum);
  std::vector<double> both(kValues);
  for (int i = 0; i < kValues; ++i) both[i] = static_cast<double>(e[i]) + f[i];
  EXPECT_NEAR(metric.product(e.data(), e.data()) + 2 * metric.product(e.data(), f.data()) +
                  metric.product(f.data(), f.data()),
              cost_of(v, both), 1e-4 * cost_of(v, both));
}

// Returns the least cost of all rows of 16 one-bit values whose last 7 bits, the seam, equal the last 7 bits
// of `like`.
double least_cost(const TrellisTable& table, const std::vector<float>& v, const float* x,
                  const std::uint16_t* like) {
  double least = std::numeric_limits<double>::infinity();
  int seam = 0;
  for (int i = 9; i < 16; ++i) seam |= like[i] << i;
  for (int code = seam; code < seam + (1 << 9); ++code) {
    std::vector<std::uint16_t> symbols(16);
    for (int i = 0; i < 16; ++i) symbols[i] = static_cast<std::uint16_t>(code >> i & 1);
    least = std::min(least, cost_of(v, errors_of(table, x, symbols.data(), 16)));
  }
  return least;
}

TEST(ShapedEncoder, ComesNearTheBestOfAllCodesThroughItsSeam) {
  constexpr int kRows = 60, kValues = 16;
  const TrellisTable& table = trellis_tables()[0];
  const std::vector<float> v = directions(kValues, 4), values = normal_numbers(kRows * kValues, 5);
  std::vector<std::uint16_t> shaped(values.size()), plain(values.size());
  ShapedEncoder(table).encode(values.data(), kRows, ErrorMetric(v), shaped.data());
  TrellisEncoder(table).encode(values.data(), kRows, kValues, plain.data());
  double best = 0, found = 0, unshaped = 0;
  for (int row = 0; row < kRows; ++row) {
    const float* x = values.data() + row * kValues;
    best += least_cost(table, v, x, shaped.data() + row * kValues);
    found += cost_of(v, errors_of(table, x, shaped.data() + row * kValues, kValues));
    unshaped += cost_of(v, errors_of(table, x, plain.data() + row * kValues, kValues));
  }
  EXPECT_GE(found, best * (1 - 1e-5));
  EXPECT_LT(found, 1.3 * best);
  EXPECT_GT(unshaped, 2 * best);
}

TEST(ShapedEncoder, LeavesLessThanHalfUnderAMetricOfFewDirections) {
  for (const int kValues : {64, 128}) {
    constexpr int kRows = 40;
    const std::vector<float> v = directions(kValues, 6),
                             values = normal_numbers(std::size_t{kRows} * kValues, 7);
    for (const TrellisTable& table : trellis_tables()) {
      std::vector<std::uint16_t> shaped(values.size()), plain(values.size());
      ShapedEncoder(table).encode(values.data(), kRows, ErrorMetric(v), shaped.data());
      TrellisEncoder(table).encode(values.data(), kRows, kValues, plain.data());
      double found = 0, unshaped = 0;
      for (int row = 0; row < kRows; ++row) {
        const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(row) * kValues;
        const float* x = values.data() + first;
        found += cost_of(v, errors_of(table, x, shaped.data() + first, kValues));
        unshaped += cost_of(v, errors_of(table, x, plain.data() + first, kValues));
      }
      EXPECT_LT(found, 0.5 * unshaped) << table.bits;
    }
  }
}

// If all directions are zero, all errors count alike, so the search finds a path of least squared error. Only
// the seam may be worse, because fewer values have chosen the seam.
TEST(ShapedEncoder, LeavesWhatThePlainSearchDoesWhereErrorsCountAlike) {
  constexpr int kRows = 64, kValues = 64;
  const std::vector<float> values = normal_numbers(kRows * kValues, 8);
  const ErrorMetric alike(std::vector<float>(kValues * kMetricRank, 0.0F));
  for (const TrellisTable& table : trellis_tables()) {
    std::vector<std::uint16_t> shaped(values.size()), plain(values.size());
    ShapedEncoder(table).encode(values.data(), kRows, alike, shaped.data());
    TrellisEncoder(table).encode(values.data(), kRows, kValues, plain.data());
    double found = 0, expected = 0;
    for (int row = 0; row < kRows; ++row) {
      const float* x = values.data() + row * kValues;
      for (const double e : errors_of(table, x, shaped.data() + row * kValues, kValues)) found += e * e;
      for (const double e : errors_of(table, x, plain.data() + row * kValues, kValues)) expected += e * e;
    }
    EXPECT_NEAR(found, expected, 0.04 * expected) << table.bits;
  }
}

// Searches in double precision. For each node, the path of least cost survives, together with its errors
// along the metric's directions. Returns the least cost of all paths through `seam`.
double searched_cost(const TrellisTable& table, const ErrorMetric& metric, const float* x, int seam) {
  struct Path {
    double cost = std::numeric_limits<double>::infinity();
    double along[kMetricRank] = {};
  };
  const int nodes = kTrellisStates >> table.bits;
  std::vector<Path> paths(nodes);
  paths[seam].cost = 0;
  for (const FeedbackStep& step : metric.steps()) {
    std::vector<Path> next(nodes);
    for (int state = 0; state < kTrellisStates; ++state) {
      const Path& from = paths[state & (nodes - 1)];
      const double error = *x - static_cast<double>(table.levels[state]) * table.scale;
      double filtered = error;
      for (int r = 0; r < kMetricRank; ++r) filtered += step.feedback[r] * from.along[r];
      const double cost = from.cost + step.weight * filtered * filtered;
      Path& to = next[state >> table.bits];
      if (cost >= to.cost) continue;
      to.cost = cost;
      for (int r = 0; r < kMetricRank; ++r) to.along[r] = from.along[r] + step.directions[r] * error;
    }
    paths = next;
    ++x;
  }
  return paths[seam].cost;
}

// Compares the costs of the encoder's codes with the costs that the search in double precision finds through
// the same seams.
double excess(const TrellisTable& table, const std::vector<float>& v, const std::vector<float>& values,
              int n) {
  const int n_rows = static_cast<int>(values.size()) / n;
  const ErrorMetric metric(v);
  std::vector<std::uint16_t> symbols(values.size());
  ShapedEncoder(table).encode(values.data(), n_rows, metric, symbols.data());
  std::vector<std::uint8_t> seams(n_rows);
  TrellisEncoder(table).find_seams(values.data(), n_rows, n, seams.data());
  double found = 0, searched = 0;
  for (int row = 0; row < n_rows; ++row) {
    const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(row) * n;
    found += cost_of(v, errors_of(table, values.data() + first, symbols.data() + first, n));
    searched += searched_cost(table, metric, values.data() + first, seams[row]);
  }
  return found / searched - 1;
}

// Scales the directions to give M the eigenvalues 1 + strengths[r].
std::vector<float> with_strengths(std::vector<float> v, const std::array<double, kMetricRank>& strengths) {
  for (std::size_t r = 0; r < kMetricRank; ++r) {
    double squares = 0;
    for (std::size_t i = r; i < v.size(); i += kMetricRank) squares += double{v[i]} * v[i];
    for (std::size_t i = r; i < v.size(); i += kMetricRank)
      v[i] = static_cast<float>(v[i] * std::sqrt(strengths[r] / squares));
  }
  return v;
}

TEST(ShapedEncoder, FindsWhatASearchInDoublePrecisionDoes) {
  constexpr int kRows = kSearchedRows;
  for (const int kValues : {64, 128}) {
    const std::vector<float> v = with_strengths(
        normal_numbers(static_cast<std::size_t>(kValues) * kMetricRank, 11), {132, 59, 29, 14, 9, 6, 4, 3});
    const std::vector<float> values = normal_numbers(static_cast<std::size_t>(kRows) * kValues, 12);
    for (const TrellisTable& table : trellis_tables())
      EXPECT_NEAR(excess(table, v, values, kValues), 0, 0.02) << table.bits << " bits, " << kValues;
  }
}

// The metrics are nearly flat, dominated by one direction, or concentrated on few channels.
TEST(ShapedEncoder, KeepsItsPrecisionUnderExtremeMetrics) {
  constexpr int kRows = kSearchedRows, kValues = 64;
  const std::vector<float> values = normal_numbers(kRows * kValues, 13);
  const std::vector<float> any = normal_numbers(kValues * kMetricRank, 14);
  std::vector<float> few = any;
  for (int i = 0; i < kValues; ++i)
    if (i % 8 != 0)
      for (int r = 0; r < kMetricRank; ++r) few[i * kMetricRank + r] *= 0.02F;
  const std::vector<float> metrics[] = {
      with_strengths(any, {.5, .4, .3, .2, .1, .05, .02, .01}),
      with_strengths(any, {3000, 0, 0, 0, 0, 0, 0, 0}),
      with_strengths(any, {3000, 1000, 500, 300, 200, 100, 50, 20}),
      with_strengths(few, {3000, 1000, 300, 100, 50, 20, 10, 5}),
  };
  for (const std::vector<float>& v : metrics)
    for (const TrellisTable& table : trellis_tables())
      EXPECT_NEAR(excess(table, v, values, kValues), 0, 0.1) << table.bits << " bits, " << &v - metrics;
}

// The rows have a root mean square of 1, and a few of the values, or only one, lie beyond all levels.
TEST(ShapedEncoder, BearsOutlyingValues) {
  constexpr int kRows = kSearchedRows / 2;
  for (const int kValues : {64, 128}) {
    const std::vector<float> v =
        with_strengths(normal_numbers(static_cast<std::size_t>(kValues) * kMetricRank, 15),
                       {1000, 300, 100, 30, 10, 5, 3, 2});
    std::vector<float> values = normal_numbers(static_cast<std::size_t>(kRows) * kValues, 16);
    for (int row = 0; row < kRows; ++row) {
      float* x = values.data() + static_cast<std::ptrdiff_t>(row) * kValues;
      x[row % kValues] = row % 2 == 0 ? 20.0F : 1e6F;
      double squares = 0;
      for (int i = 0; i < kValues; ++i) squares += double{x[i]} * x[i];
      for (int i = 0; i < kValues; ++i) x[i] = static_cast<float>(x[i] * std::sqrt(kValues / squares));
    }
    for (const TrellisTable& table : trellis_tables())
      EXPECT_NEAR(excess(table, v, values, kValues), 0, 0.1) << table.bits << " bits, " << kValues;
  }
}

TEST(ShapedEncoder, FindsTheSamePathsWithAllInstructions) {
  constexpr int kRows = 33;
  for (const int kValues : {16, 72}) {
    const std::vector<float> v = directions(kValues, 9);
    for (const float strength : {0.0F, 1.0F, 10.0F}) {
      std::vector<float> scaled = v;
      for (float& x : scaled) x *= strength;
      const ErrorMetric metric(scaled);
      std::vector<float> values = normal_numbers(static_cast<std::size_t>(kRows) * kValues, 10);
      std::fill_n(values.begin() + kValues, kValues, 0.0F);
      std::fill_n(values.begin() + std::ptrdiff_t{2} * kValues, kValues, 50.0F);
      for (const TrellisTable& table : trellis_tables()) {
        std::vector<std::uint16_t> portable(values.size());
        ShapedEncoder(table, portable_shaped_search()).encode(values.data(), kRows, metric, portable.data());
        for (const ShapedKernel* kernel : runnable_shaped_searches()) {
          std::vector<std::uint16_t> symbols(values.size());
          ShapedEncoder(table, *kernel).encode(values.data(), kRows, metric, symbols.data());
          EXPECT_EQ(symbols, portable) << kernel->name << ", " << table.bits << " bits";
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvant
