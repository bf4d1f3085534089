// Compares learned transforms and head priorities with computations by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "calibrate/head_priority.h"
#include "calibrate/principal_directions.h"
#include "calibrate/transform_learner.h"
#include "recipe/head_mix.h"
#include "transform/transform.h"

namespace kvant {
namespace {

const std::vector<float> kValues{1, -4, 3, 4, 2, 0};  // [3, 2]

std::vector<float> learned(const std::string& kind, const std::vector<float>& values, int d) {
  const TransformLearner* learner = find_transform_learner(kind);
  if (learner == nullptr) return {};
  const MatrixView<const float> rows{values.data(), static_cast<int>(values.size()) / d, d};
  return learner->learn({Side::key, rows, rows, rows});
}

TEST(TransformLearner, KnowsEveryCalibratedTransform) {
  const std::vector<float> values(64 * 32, 1.0F);
  for (const TransformKind* kind : transform_kinds()) {
    if (!kind->calibrated) continue;
    EXPECT_EQ(learned(kind->name, values, 32).size(), kind->constant_size(32)) << kind->name;
  }
}

TEST(TransformLearner, MatchesComputationByHand) {
  EXPECT_EQ(learned("mean", kValues, 2), (std::vector<float>{2, 0}));
  EXPECT_EQ(learned("smooth", kValues, 2), (std::vector<float>{std::sqrt(3.0F), 2}));
  EXPECT_EQ(learned("amax", kValues, 2), (std::vector<float>{3, 4}));
  const std::vector<float> scale = learned("scale", kValues, 2);
  EXPECT_FLOAT_EQ(scale[0], std::sqrt(std::sqrt(2.0F / 3)));
  EXPECT_FLOAT_EQ(scale[1], std::sqrt(std::sqrt(32.0F / 3)));
}

// The values are combinations of known orthogonal directions with known lengths.
TEST(PrincipalDirections, FindsTheDirectionsThatValuesWereMadeOf) {
  const int d = 8;
  const float c = std::cos(0.7F);
  const float s = std::sin(0.7F);
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> values;
  for (int i = 0; i < 20000; ++i) {
    const float long_axis = 5 * normal(random);
    const float short_axis = 2 * normal(random);
    std::vector<float> row(d);
    for (float& x : row) x = 0.1F * normal(random);
    row[2] += c * long_axis - s * short_axis;
    row[5] += s * long_axis + c * short_axis;
    values.insert(values.end(), row.begin(), row.end());
  }
  const std::vector<float> basis = principal_directions(second_moments({values.data(), 20000, d}), d);
  EXPECT_NEAR(std::abs(c * basis[2] + s * basis[5]), 1, 1e-2);
  EXPECT_NEAR(std::abs(-s * basis[d + 2] + c * basis[d + 5]), 1, 1e-2);
}

TEST(PrincipalDirections, AreOrthonormalAndMakeChannelsIndependent) {
  const int d = 80;
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> mixing(static_cast<std::size_t>(d) * d);
  for (float& x : mixing) x = normal(random);
  std::vector<float> values(static_cast<std::size_t>(500) * d);
  for (int r = 0; r < 500; ++r)
    for (int i = 0; i < d; ++i) {
      const float x = normal(random);
      for (int j = 0; j < d; ++j) values[r * d + j] += x * mixing[i * d + j];
    }
  const std::vector<float> basis = principal_directions(second_moments({values.data(), 500, d}), d);
  std::vector<double> moments(d);
  double largest_cross = 0;
  for (int i = 0; i < d; ++i)
    for (int j = 0; j <= i; ++j) {
      double dot = 0;
      double cross = 0;
      for (int k = 0; k < d; ++k) dot += static_cast<double>(basis[i * d + k]) * basis[j * d + k];
      for (int r = 0; r < 500; ++r) {
        double a = 0;
        double b = 0;
        for (int k = 0; k < d; ++k) {
          a += static_cast<double>(values[r * d + k]) * basis[i * d + k];
          b += static_cast<double>(values[r * d + k]) * basis[j * d + k];
        }
        cross += a * b;
      }
      EXPECT_NEAR(dot, i == j ? 1 : 0, 1e-5);
      if (i == j)
        moments[i] = cross;
      else
        largest_cross = std::max(largest_cross, std::abs(cross));
    }
  EXPECT_LT(largest_cross, 1e-4 * moments[0]);
  for (int i = 1; i < d; ++i) EXPECT_LE(moments[i], moments[i - 1] * 1.0001);
}

// The queries read K along (1, 1) more than along (1, -1). The queries read the second token's key most, so
// V's moments come mostly from that token.
TEST(TransformLearner, OscarTurnsToWhatAttentionReads) {
  const std::vector<float> queries{2, 2, 1, -1}, keys{1, -1, 3, 3}, values{5, 0, 0, 1};
  const auto view = [](const std::vector<float>& x) { return MatrixView<const float>(x.data(), 2, 2); };
  const TransformLearner* learner = find_transform_learner("oscar");
  ASSERT_NE(learner, nullptr);
  const std::vector<float> of_keys = learner->learn({Side::key, view(keys), view(keys), view(queries)});
  EXPECT_NEAR(std::abs(of_keys[0] + of_keys[1]), std::sqrt(2.0F), 1e-6);  // the moments are [[5, 3], [3, 5]]
  // The squared scores of the two keys are (2 - 2)^2 + (1 + 1)^2 = 4 and 12^2 + 0 = 144. The moments of V are
  // diag(25 * 4, 144).
  const std::vector<float> of_values = learner->learn({Side::value, view(values), view(keys), view(queries)});
  EXPECT_NEAR(std::abs(of_values[1]), 1, 1e-6);
  EXPECT_NEAR(std::abs(of_values[2]), 1, 1e-6);
}

// The map must make the queries' second moments equal in all directions, and the keys' components
// independent. Components of falling variance must go to the groups of 4 in turn.
TEST(TransformLearner, NovaWhitensQueriesAndSeparatesKeys) {
  constexpr int kDim = 8, kKeys = 4000, kQueries = 3000;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> mixing_of_keys(kDim * kDim), mixing_of_queries(kDim * kDim);
  for (float& x : mixing_of_keys) x = normal(random);
  for (float& x : mixing_of_queries) x = normal(random);
  const auto mixed = [&](int n, const std::vector<float>& mixing, float offset) {
    std::vector<float> rows(static_cast<std::size_t>(n) * kDim, offset);
    for (int r = 0; r < n; ++r)
      for (int i = 0; i < kDim; ++i) {
        const float x = normal(random);
        for (int j = 0; j < kDim; ++j) rows[r * kDim + j] += x * mixing[i * kDim + j];
      }
    return rows;
  };
  std::vector<float> keys = mixed(kKeys, mixing_of_keys, 2), queries = mixed(kQueries, mixing_of_queries, 1);
  const TransformLearner* learner = find_transform_learner("nova");
  ASSERT_NE(learner, nullptr);
  const MatrixView<const float> of_keys{keys.data(), kKeys, kDim}, of_queries{queries.data(), kQueries, kDim};
  Constants constants;
  constants.set(0, 0, Side::key, "nova", learner->learn({Side::key, of_keys, of_keys, of_queries}));
  const std::vector<std::string> names{"nova"};
  const auto transform = Transform::make(names, kDim, HeadConstants{&constants, 0, 0, Side::key});
  ASSERT_TRUE(transform.ok()) << transform.error().message;
  transform->query({queries.data(), kQueries, kDim}, nullptr);
  transform->forward({keys.data(), kKeys, kDim});
  const auto product = [](const std::vector<float>& rows, int i, int j, double mean_i, double mean_j) {
    double sum = 0;
    const std::size_t n = rows.size() / kDim;
    for (std::size_t r = 0; r < n; ++r) sum += (rows[r * kDim + i] - mean_i) * (rows[r * kDim + j] - mean_j);
    return sum / static_cast<double>(n);
  };
  double mean[kDim] = {}, variance[kDim];
  for (std::size_t at = 0; at < keys.size(); ++at) mean[at % kDim] += keys[at] / double{kKeys};
  const double level = product(queries, 0, 0, 0, 0);
  for (int i = 0; i < kDim; ++i) {
    variance[i] = product(keys, i, i, mean[i], mean[i]);
    for (int j = 0; j < kDim; ++j)
      EXPECT_NEAR(product(queries, i, j, 0, 0), i == j ? level : 0, 1e-3 * level) << i << " " << j;
    for (int j = 0; j < i; ++j)
      EXPECT_NEAR(product(keys, i, j, mean[i], mean[j]), 0, 1e-3 * variance[0]) << i << " " << j;
  }
  for (int rank = 1; rank < kDim; ++rank) {  // rank r is channel r / 2 of group r % 2
    const auto at = [](int r) { return r % 2 * 4 + r / 2; };
    EXPECT_LE(variance[at(rank)], variance[at(rank - 1)]) << rank;
  }
}

TEST(HeadPriority, MeasuresEveryMetricOfTheRecipes) {
  for (const char* metric : mix_metrics()) {
    bool known = false;
    for (const PriorityMetric& measured : priority_metrics())
      known = known || metric == std::string(measured.name);
    EXPECT_TRUE(known) << metric;
  }
}

// The channels' ranges are 2 and 8, and values reach from -4 to 4.
TEST(HeadPriority, MatchesComputationByHand) {
  const MatrixView<const float> values(kValues.data(), 3, 2);
  for (const PriorityMetric& metric : priority_metrics()) {
    // Six bins have one value each, so the entropy is log2(6).
    const std::map<std::string, double> by_hand{
        {"min-max", 8}, {"variation", 3}, {"gap-std", 24}, {"entropy", std::log2(6.0)}};
    ASSERT_TRUE(by_hand.contains(metric.name));
    EXPECT_NEAR(metric.measure(values), by_hand.at(metric.name), 1e-12) << metric.name;
  }
}

}  // namespace
}  // namespace kvant
