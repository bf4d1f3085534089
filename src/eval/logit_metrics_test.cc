#include "eval/logit_metrics.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <random>

namespace kvant {
namespace {

struct Oracle {
  double kld = 0, nll = 0, delta_p = 0;
};

// Computes the metrics from their definitions, term by term in F64.
Oracle oracle(const std::vector<float>& base, const std::vector<float>& other, int target) {
  const auto log_softmax = [](const std::vector<float>& x) {
    double top = -INFINITY, sum = 0;
    for (const float v : x) top = std::max(top, double{v});
    for (const float v : x) sum += std::exp(v - top);
    std::vector<double> out;
    out.reserve(x.size());
    for (const float v : x) out.push_back(v - top - std::log(sum));
    return out;
  };
  const auto p = log_softmax(base), q = log_softmax(other);
  Oracle result;
  for (std::size_t i = 0; i < p.size(); ++i) {
    if (std::exp(p[i]) > 0) result.kld += std::exp(p[i]) * (p[i] - q[i]);
  }
  result.nll = -q[target];
  result.delta_p = std::exp(q[target]) - std::exp(p[target]);
  return result;
}

std::vector<float> noise(int n, double sigma, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, static_cast<float>(sigma));
  std::vector<float> out(n);
  for (float& x : out) x = normal(random);
  return out;
}

TEST(CompareLogits, AgreesWithTheDefinitionInF64) {
  for (const int n : {1, 2, 15, 16, 17, 255, 256, 257, 5000, 49152}) {
    for (const double distance : {1e-4, 1e-2, 1.0, 5.0}) {
      const auto base = noise(n, 4.0, n);
      auto other = base;
      const auto change = noise(n, distance, n + 1);
      for (int i = 0; i < n; ++i) other[i] += change[i];
      const auto expected = oracle(base, other, n / 2);
      const auto actual = compare_logits(base.data(), other.data(), n, n / 2);
      // compare_logits() rounds differences of logits to F32. The rounding is exact for close logits and
      // otherwise accurate to 1e-7.
      EXPECT_NEAR(actual.kld, expected.kld, 1e-7 * (1 + 4 * distance) + 1e-6 * expected.kld)
          << n << " " << distance;
      EXPECT_NEAR(actual.nll, expected.nll, 1e-5) << n << " " << distance;
      EXPECT_NEAR(actual.delta_p, expected.delta_p, 1e-6) << n << " " << distance;
    }
  }
}

// For p = (1/2, 1/4, 1/4) and p' = (1/4, 1/2, 1/4), KLD is 1/2 log 2 - 1/4 log 2 = 1/4 log 2.
TEST(CompareLogits, GivesTheHandWorkedExample) {
  const std::vector<float> base = {std::log(2.0F), 0.0F, 0.0F};
  const std::vector<float> other = {7.0F, 7.0F + std::log(2.0F), 7.0F};
  const auto result = compare_logits(base.data(), other.data(), 3, 1);
  EXPECT_NEAR(result.kld, 0.25 * std::log(2.0), 1e-6);
  EXPECT_NEAR(result.nll, std::log(2.0), 1e-6);
  EXPECT_NEAR(result.delta_p, 0.25, 1e-6);
  EXPECT_FALSE(result.same_top);
}

TEST(CompareLogits, EqualRowsDivergeByNothing) {
  const auto base = noise(49152, 5.0, 3);
  const auto result = compare_logits(base.data(), base.data(), 49152, 0);
  EXPECT_EQ(result.kld, 0.0);
  EXPECT_EQ(result.delta_p, 0.0);
  EXPECT_TRUE(result.same_top);
}

TEST(CompareLogits, ToleratesImpossibleTokens) {
  const std::vector<float> base = {0.0F, -INFINITY, 0.0F, -1000.0F};
  const std::vector<float> other = {0.0F, -INFINITY, 0.0F, 0.0F};
  EXPECT_NEAR(compare_logits(base.data(), other.data(), 4, 0).kld, std::log(1.5), 1e-6);
}

TEST(CompareLogits, IsFastEnoughToVanishBesideTheModel) {
  const auto base = noise(49152, 4.0, 1), other = noise(49152, 4.0, 2);
  double best = INFINITY;
  double keep = 0;
  for (int i = 0; i < 20; ++i) {
    const auto start = std::chrono::steady_clock::now();
    keep += compare_logits(base.data(), other.data(), 49152, i).kld;
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  RecordProperty("microseconds_per_pair", static_cast<int>(best * 1e6));
  EXPECT_GT(keep, 0);
  // The limit is loose because sanitizers and shared machines slow the test down.
  EXPECT_LT(best, 20e-3);
}

TEST(Quantile, InterpolatesBetweenNeighbours) {
  const std::vector<double> values = {0, 1, 2, 3, 4};
  EXPECT_EQ(quantile(values, 0.0), 0.0);
  EXPECT_EQ(quantile(values, 0.5), 2.0);
  EXPECT_DOUBLE_EQ(quantile(values, 0.9), 3.6);
  EXPECT_EQ(quantile(values, 1.0), 4.0);
}

// For many values, the interval approaches mean +- 1.96 sigma / sqrt(n).
TEST(BootstrapMean, MatchesTheNormalApproximation) {
  std::mt19937 random(5);
  std::normal_distribution<double> normal(3.0, 2.0);
  std::vector<double> values(400);
  for (double& v : values) v = normal(random);
  double mean = 0, variance = 0;
  for (const double v : values) mean += v / 400;
  for (const double v : values) variance += (v - mean) * (v - mean) / 400;
  const double half = 1.96 * std::sqrt(variance / 400);
  const Interval interval = bootstrap_mean(values);
  EXPECT_NEAR(interval.lo, mean - half, 0.1 * half);
  EXPECT_NEAR(interval.hi, mean + half, 0.1 * half);
}

TEST(LogitMetrics, SummarizesPositions) {
  // At the first of two positions, the row equals the reference. At the second position, the two logits are
  // swapped.
  const std::vector<float> base = {1.0F, 0.0F, 1.0F, 0.0F};
  const std::vector<float> other = {1.0F, 0.0F, 0.0F, 1.0F};
  const std::vector<std::int32_t> targets = {0, 0};
  LogitMetrics metrics;
  metrics.begin_chunk();
  const MatrixView<const float> base_rows(base.data(), 2, 2), other_rows(other.data(), 2, 2);
  ASSERT_TRUE(metrics.add(base_rows, other_rows, targets, 2).ok());
  const MetricsSummary summary = metrics.summary();
  const double p = std::exp(1.0) / (std::exp(1.0) + 1.0);
  // 2 p - 1 equals p log(p / q) + q log(q / p), because log(p / q) = 1.
  const double turned = 2 * p - 1;
  EXPECT_EQ(summary.positions, 2);
  EXPECT_NEAR(summary.kld_max, turned, 1e-6);
  EXPECT_NEAR(summary.kld_mean, turned / 2, 1e-6);
  EXPECT_NEAR(summary.kld_median, turned / 2, 1e-6);
  EXPECT_NEAR(summary.ppl, std::exp(-(std::log(p) + std::log(1 - p)) / 2), 1e-5);
  EXPECT_EQ(summary.top1, 0.5);
  EXPECT_NEAR(summary.rms_dp, turned / std::sqrt(2.0), 1e-6);
}

TEST(LogitMetrics, RefusesLogitsThatAreNotNumbers) {
  const std::vector<float> base = {1.0F, 0.0F}, other = {NAN, NAN};
  const std::vector<std::int32_t> targets = {0};
  LogitMetrics metrics;
  EXPECT_FALSE(metrics.add({base.data(), 1, 2}, {other.data(), 1, 2}, targets, 1).ok());
}

}  // namespace
}  // namespace kvant
