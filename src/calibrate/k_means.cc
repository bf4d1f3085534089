#include "calibrate/k_means.h"

#include <algorithm>
#include <random>

#include "base/check.h"
#include "calibrate/k_means_start.h"
#include "format/nearest_centroid.h"

namespace kvant {
namespace {

constexpr int kDrawnForEach = 8;        // k-means++ considers this many points per initial centroid
constexpr double kMinErrorGain = 1e-4;  // an iteration must lower the error by at least this share

// Clusters assigns points to centroids.
struct Clusters {
  std::vector<std::uint16_t> nearest;  // [n]
  std::vector<double> sums;            // [n_centroids, dim]
  std::vector<int> counts;             // [n_centroids]
  double error = 0;                    // the mean of |x - c|^2
};

void assign(MatrixView<const float> points, const std::vector<float>& centroids, Clusters& clusters) {
  const int dim = points.cols;
  const int n_centroids = static_cast<int>(centroids.size()) / dim;
  clusters.nearest.resize(points.rows);
  for (int first = 0; first < points.rows; first += kMaxSearchVectors) {
    nearest_centroids(points.row(first), points.stride, std::min(kMaxSearchVectors, points.rows - first), dim,
                      centroids.data(), n_centroids, clusters.nearest.data() + first);
  }
  clusters.sums.assign(centroids.size(), 0.0);
  clusters.counts.assign(n_centroids, 0);
  double error = 0;
  for (int i = 0; i < points.rows; ++i) {
    const float* x = points.row(i);
    const std::size_t at = static_cast<std::size_t>(clusters.nearest[i]) * dim;
    float distance = 0;
    for (int j = 0; j < dim; ++j) {
      clusters.sums[at + j] += x[j];
      const float difference = x[j] - centroids[at + j];
      distance += difference * difference;
    }
    error += distance;
    ++clusters.counts[clusters.nearest[i]];
  }
  clusters.error = error / points.rows;
}

// Draws a random point of cluster c.
int draw_member(const Clusters& clusters, int c, int n_members, std::mt19937_64& random) {
  int left = static_cast<int>(random() % n_members);
  for (std::size_t i = 0; i < clusters.nearest.size(); ++i) {
    if (clusters.nearest[i] == c && left-- == 0) return static_cast<int>(i);
  }
  KVANT_CHECK(false, "a cluster without its members");
}

// Moves each centroid to its cluster's mean. The centroid of an empty cluster moves to a member of the
// largest cluster, whose size then counts as half.
void move_centroids(MatrixView<const float> points, const Clusters& clusters, std::mt19937_64& random,
                    std::vector<float>& centroids) {
  const int dim = points.cols;
  std::vector<int> sizes = clusters.counts;
  for (std::size_t c = 0; c < sizes.size(); ++c) {
    float* centroid = centroids.data() + c * dim;
    if (clusters.counts[c] > 0) {
      for (int j = 0; j < dim; ++j)
        centroid[j] = static_cast<float>(clusters.sums[c * dim + j] / clusters.counts[c]);
      continue;
    }
    const auto largest = std::max_element(sizes.begin(), sizes.end());
    if (*largest == 0) break;  // there are fewer points than centroids
    const int from = static_cast<int>(largest - sizes.begin());
    const float* x = points.row(draw_member(clusters, from, clusters.counts[from], random));
    std::copy(x, x + dim, centroid);
    *largest /= 2;
  }
}

}  // namespace

KMeans k_means(MatrixView<const float> points, int n_centroids, const KMeansOptions& options) {
  KVANT_CHECK(points.rows > 0 && points.stride == points.cols, "k-means of no points, or of scattered ones");
  std::mt19937_64 random(options.seed);
  KMeans result;
  result.centroids = spread_centroids(points, n_centroids, kDrawnForEach * n_centroids, random);
  Clusters clusters;
  assign(points, result.centroids, clusters);
  result.error_before = result.error_after = clusters.error;
  for (int i = 0; i < options.iterations; ++i) {
    std::vector<float> moved = result.centroids;
    move_centroids(points, clusters, random, moved);
    assign(points, moved, clusters);
    if (clusters.error > result.error_after) break;  // re-seeding a cluster can cost more than it gains
    const double gain = result.error_after - clusters.error;
    result.centroids = std::move(moved);
    result.error_after = clusters.error;
    if (gain <= kMinErrorGain * result.error_after) break;
  }
  return result;
}

double mean_squared_distance(MatrixView<const float> points, const std::vector<float>& centroids) {
  Clusters clusters;
  assign(points, centroids, clusters);
  return clusters.error;
}

}  // namespace kvant
