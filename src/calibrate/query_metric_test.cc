#include "calibrate/query_metric.h"

#include <gtest/gtest.h>

#include <random>

#include "format/error_metric.h"

namespace kvant::query_metric_test {
namespace {

constexpr int kDim = 32;

std::vector<float> normal_numbers(std::size_t n, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

double quadratic(const std::vector<double>& matrix, const std::vector<float>& e) {
  double sum = 0;
  for (int i = 0; i < kDim; ++i)
    for (int j = 0; j < kDim; ++j) sum += matrix[static_cast<std::size_t>(i) * kDim + j] * e[i] * e[j];
  return sum;
}

// Returns moments with three strong directions, while all other directions are equal. The metric represents
// these moments exactly.
std::vector<double> moments() {
  const std::vector<float> v = normal_numbers(std::size_t{3} * kDim, 1);
  std::vector<double> m(std::size_t{kDim} * kDim, 0.0);
  for (int i = 0; i < kDim; ++i) {
    m[static_cast<std::size_t>(i) * kDim + i] = 1;
    for (int j = 0; j < kDim; ++j)
      for (int k = 0; k < 3; ++k)
        m[static_cast<std::size_t>(i) * kDim + j] +=
            static_cast<double>(v[k * kDim + i]) * v[k * kDim + j] / (1 + k);
  }
  return m;
}

TEST(QueryMetric, CountsErrorsAsTheQueriesMomentsDo) {
  for (const std::vector<std::string>& steps : {std::vector<std::string>{}, {"hadamard"}}) {
    const auto transform = Transform::make(steps, kDim, {});
    ASSERT_TRUE(transform.ok());
    std::vector<double> m = moments();
    const std::vector<float> directions = query_metric(m, *transform, kDim);
    std::vector<float> rows(directions.size());
    for (int i = 0; i < kDim; ++i)
      for (int r = 0; r < kMetricRank; ++r) rows[r * kDim + i] = directions[i * kMetricRank + r];
    transform->query({rows.data(), kMetricRank, kDim}, nullptr);
    std::vector<float> transformed(directions.size());
    for (int i = 0; i < kDim; ++i)
      for (int r = 0; r < kMetricRank; ++r) transformed[i * kMetricRank + r] = rows[r * kDim + i];
    const ErrorMetric metric(transformed);
    double mean = 0;
    for (int i = 0; i < kDim; ++i) mean += m[static_cast<std::size_t>(i) * kDim + i] / kDim;
    for (int i = 0; i < kDim; ++i) m[static_cast<std::size_t>(i) * kDim + i] += 0.1 * mean;
    for (std::uint32_t seed = 2; seed < 8; ++seed) {
      std::vector<float> e = normal_numbers(kDim, seed);
      const double expected = quadratic(m, e) / (1 + 0.1 * mean);
      transform->forward({e.data(), 1, kDim});
      EXPECT_NEAR(metric.product(e.data(), e.data()), expected, 0.01 * expected);
    }
  }
}

TEST(QueryMetric, OfNoQueriesCountsAllErrorsAlike) {
  const std::vector<float> metric =
      query_metric(std::vector<double>(std::size_t{kDim} * kDim, 0.0), Transform{}, kDim);
  EXPECT_EQ(metric, std::vector<float>(std::size_t{kDim} * kMetricRank, 0.0F));
}

}  // namespace
}  // namespace kvant::query_metric_test
