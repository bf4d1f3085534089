#include "format/shaped_row.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "format/affine_row.h"
#include "format/bit_packing.h"

namespace kvant {
namespace {

constexpr int kChannels = 32;
constexpr int kBits = 4;
constexpr float kStep = 0.4F, kOffset = -3.0F;

using Matrix = std::vector<std::vector<double>>;

std::vector<float> normals(int n, float scale, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(n);
  for (float& v : values) v = normal(random);
  return values;
}

// 1 + V V^T.
Matrix metric_matrix(const std::vector<float>& directions) {
  Matrix m(kChannels, std::vector<double>(kChannels));
  for (int i = 0; i < kChannels; ++i) {
    for (int j = 0; j < kChannels; ++j) {
      m[i][j] = i == j ? 1 : 0;
      for (int r = 0; r < kMetricRank; ++r)
        m[i][j] += static_cast<double>(directions[i * kMetricRank + r]) * directions[j * kMetricRank + r];
    }
  }
  return m;
}

double cost(const Matrix& m, const std::vector<double>& e) {
  double sum = 0;
  for (int i = 0; i < kChannels; ++i)
    for (int j = 0; j < kChannels; ++j) sum += e[i] * m[i][j] * e[j];
  return sum;
}

// The first of the errors from `at` on that would cost least beside those before it, if values weren't
// rounded: by elimination of M e = 0 in their rows.
double best_error(const Matrix& m, const std::vector<double>& e, int at) {
  const int n = kChannels - at;
  Matrix a(n, std::vector<double>(n + 1));
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) a[i][j] = m[at + i][at + j];
    for (int j = 0; j < at; ++j) a[i][n] -= m[at + i][j] * e[j];
  }
  for (int k = n - 1; k > 0; --k) {  // from the last on, so that the first remains
    for (int i = 0; i < k; ++i) {
      const double factor = a[i][k] / a[k][k];
      for (int j = 0; j <= n; ++j) a[i][j] -= factor * a[k][j];
    }
  }
  return a[0][n] / a[0][0];
}

struct RoundedRow {
  std::vector<std::uint16_t> codes = std::vector<std::uint16_t>(kChannels);
  std::vector<double> errors = std::vector<double>(kChannels);
};

class ShapedRow : public testing::Test {
 protected:
  template <class Encode>
  RoundedRow rounded(const Encode& encode) const {
    std::vector<std::byte> packed(packed_bytes(kChannels, kBits));
    encode(packed.data());
    RoundedRow row;
    unpack_codes(packed.data(), kChannels, kBits, row.codes.data());
    for (int i = 0; i < kChannels; ++i) row.errors[i] = values_[i] - (kOffset + row.codes[i] * kStep);
    return row;
  }
  RoundedRow shaped(const std::vector<float>& directions, int lowest = 0) const {
    return rounded([&](std::byte* packed) {
      encode_shaped_row(values_.data(), kChannels, kBits, lowest, step_.data(), reciprocal_.data(),
                        offset_.data(), ErrorMetric(directions), packed);
    });
  }
  RoundedRow plain() const {
    return rounded([&](std::byte* packed) {
      encode_affine_row(values_.data(), kChannels, kBits, reciprocal_.data(), offset_.data(), packed);
    });
  }

  std::vector<float> values_ = normals(kChannels, 1, 1);
  std::vector<float> step_ = std::vector<float>(kChannels, kStep);
  std::vector<float> reciprocal_ = std::vector<float>(kChannels, 1 / kStep);
  std::vector<float> offset_ = std::vector<float>(kChannels, kOffset);
};

TEST_F(ShapedRow, RoundsToTheTargetsThatTheErrorsBeforeLeave) {
  const std::vector<float> directions = normals(kChannels * kMetricRank, 1, 2);
  const Matrix m = metric_matrix(directions);
  const RoundedRow row = shaped(directions);
  for (int i = 0; i < kChannels; ++i) {
    const double target = (values_[i] - best_error(m, row.errors, i) - kOffset) / kStep;
    EXPECT_NEAR(row.codes[i], std::clamp(target, 0.0, 15.0), 0.5 + 1e-3) << i;
  }
}

TEST_F(ShapedRow, CostsLessInTheMetricThanTheNearestCodes) {
  double sum_shaped = 0, sum_plain = 0;
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    values_ = normals(kChannels, 1, 100 + seed);
    const std::vector<float> directions = normals(kChannels * kMetricRank, 1, 200 + seed);
    sum_shaped += cost(metric_matrix(directions), shaped(directions).errors);
    sum_plain += cost(metric_matrix(directions), plain().errors);
  }
  EXPECT_LT(sum_shaped, 0.5 * sum_plain);
}

TEST_F(ShapedRow, TakesTheNearestCodesWhereAllErrorsCountAlike) {
  EXPECT_EQ(shaped(std::vector<float>(kChannels * kMetricRank, 0.0F)).codes, plain().codes);
}

TEST_F(ShapedRow, NeverGoesBelowTheLowestCode) {
  for (float& v : values_) v -= 4;
  for (const std::uint16_t code : shaped(normals(kChannels * kMetricRank, 1, 3), /*lowest=*/1).codes)
    EXPECT_GE(code, 1);
}

}  // namespace
}  // namespace kvant
