#include "calibrate/k_means.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <set>

#include "calibrate/k_means_start.h"

namespace kvant {
namespace {

std::vector<float> normal_points(int n, int dim, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> points(static_cast<std::size_t>(n) * dim);
  for (float& x : points) x = normal(random);
  return points;
}

MatrixView<const float> as_points(const std::vector<float>& values, int dim) {
  return {values.data(), static_cast<int>(values.size()) / dim, dim};
}

// Runs Lloyd's algorithm in double precision by exhaustive search. Empty clusters keep their centroid.
double lloyd_by_hand(MatrixView<const float> points, const std::vector<float>& start, int iterations) {
  const int dim = points.cols;
  std::vector<double> centroids(start.begin(), start.end());
  const int k = static_cast<int>(start.size()) / dim;
  double error = 0;
  for (int i = 0; i <= iterations; ++i) {
    std::vector<double> sums(centroids.size());
    std::vector<int> counts(k);
    error = 0;
    for (int p = 0; p < points.rows; ++p) {
      double best = std::numeric_limits<double>::infinity();
      int nearest = 0;
      for (int c = 0; c < k; ++c) {
        double distance = 0;
        for (int j = 0; j < dim; ++j) {
          const double difference = points.row(p)[j] - centroids[c * dim + j];
          distance += difference * difference;
        }
        if (distance < best) {
          best = distance;
          nearest = c;
        }
      }
      error += best;
      ++counts[nearest];
      for (int j = 0; j < dim; ++j) sums[nearest * dim + j] += points.row(p)[j];
    }
    for (int c = 0; c < k; ++c)
      for (int j = 0; j < dim && counts[c] > 0; ++j) centroids[c * dim + j] = sums[c * dim + j] / counts[c];
  }
  return error / points.rows;
}

TEST(KMeans, IsAsGoodAsLloydsAlgorithmInDoublePrecision) {
  for (const int dim : {2, 4, 8}) {
    const std::vector<float> values = normal_points(2000, dim, dim);
    const auto points = as_points(values, dim);
    std::mt19937_64 random(7);
    // k_means() makes the same call, so both begin with the same centroids.
    const std::vector<float> start = spread_centroids(points, 32, 8 * 32, random);
    const double by_hand = lloyd_by_hand(points, start, 30);
    const KMeans ours = k_means(points, 32, {.iterations = 30, .seed = 7});
    EXPECT_NEAR(ours.error_before, lloyd_by_hand(points, start, 0), 1e-5);
    EXPECT_NEAR(ours.error_after, by_hand, 0.01 * by_hand) << dim;
    EXPECT_LT(ours.error_after, ours.error_before);
  }
}

TEST(KMeans, CentroidsAreTheMeansOfTheirPoints) {
  const std::vector<float> values = normal_points(1500, 4, 3);
  const auto points = as_points(values, 4);
  const KMeans once = k_means(points, 16, {.iterations = 1000, .seed = 1});
  EXPECT_NEAR(lloyd_by_hand(points, once.centroids, 0), once.error_after, 1e-5);
  // Another iteration by hand must gain almost nothing.
  EXPECT_NEAR(lloyd_by_hand(points, once.centroids, 1), once.error_after, 2e-4 * once.error_after);
}

TEST(KMeans, FindsClustersThatLieApart) {
  std::vector<float> values;
  for (int cluster = 0; cluster < 16; ++cluster)
    for (int i = 0; i < 20; ++i) {
      const int row = cluster / 4;
      values.push_back(100.0F * static_cast<float>(cluster % 4) + 0.01F * static_cast<float>(i));
      values.push_back(100.0F * static_cast<float>(row));
    }
  const KMeans means = k_means(as_points(values, 2), 16, {.seed = 5});
  EXPECT_LT(means.error_after, 0.01);
}

TEST(KMeans, GivesTheSameForTheSameSeedAndAnotherForAnother) {
  const std::vector<float> values = normal_points(3000, 4, 11);
  const auto points = as_points(values, 4);
  const KMeans a = k_means(points, 64, {.seed = 3});
  EXPECT_EQ(a.centroids, k_means(points, 64, {.seed = 3}).centroids);
  EXPECT_NE(a.centroids, k_means(points, 64, {.seed = 4}).centroids);
}

TEST(KMeans, ManagesWithFewerPointsThanCentroids) {
  const std::vector<float> values = normal_points(5, 4, 2);
  const KMeans means = k_means(as_points(values, 4), 16, {});
  EXPECT_EQ(means.centroids.size(), 16U * 4);
  EXPECT_NEAR(means.error_after, 0, 1e-12);
}

TEST(KMeans, ManagesWithEqualPoints) {
  const std::vector<float> values(400, 2.5F);
  const KMeans means = k_means(as_points(values, 4), 16, {});
  EXPECT_EQ(means.error_after, 0);
  for (const float x : means.centroids) EXPECT_EQ(x, 2.5F);
}

// All but one of the initial centroids lie at one place, far from the cloud of points. The empty clusters
// must be moved to the cloud.
TEST(KMeans, ReseedsEmptyClusters) {
  std::vector<float> values(2 * 4096, 0.0F);
  const std::vector<float> cloud = normal_points(64, 2, 9);
  std::copy(cloud.begin(), cloud.end(), values.begin() + 2 * 1000);  // k-means++ considers only 128 points
  const KMeans means = k_means(as_points(values, 2), 16, {.seed = 1});
  EXPECT_LT(means.error_after, 0.35 * means.error_before);
}

TEST(SpreadCentroids, AreDifferentPointsOfTheData) {
  const std::vector<float> values = normal_points(500, 2, 4);
  std::mt19937_64 random(1);
  const std::vector<float> centroids = spread_centroids(as_points(values, 2), 32, 500, random);
  std::set<std::pair<float, float>> points, chosen;
  for (std::size_t i = 0; i < values.size(); i += 2) points.insert({values[i], values[i + 1]});
  for (std::size_t i = 0; i < centroids.size(); i += 2) chosen.insert({centroids[i], centroids[i + 1]});
  EXPECT_EQ(chosen.size(), 32U);
  EXPECT_TRUE(std::includes(points.begin(), points.end(), chosen.begin(), chosen.end()));
}

}  // namespace
}  // namespace kvant
