// K-means: finds the centroids with the smallest mean squared distance (Lloyd 1982).
#pragma once

#include <cstdint>
#include <vector>

#include "base/matrix_view.h"

namespace kvant {

struct KMeansOptions {
  int iterations = 30;  // maximal iterations of Lloyd's algorithm (VecInfer, section 4.1)
  std::uint64_t seed = 0;
};

struct KMeans {
  std::vector<float> centroids;  // [n_centroids, dim]
  double error_before = 0;       // mean of |x - c|^2 with the initial centroids
  double error_after = 0;        // the same with the final ones
};

// points: [n, dim], contiguous, n > 0; dim: 2, 4 or 8; n_centroids: a multiple of 16, at most 65536. Starts
// from k-means++ (Arthur and Vassilvitskii 2007) on a part of the points. An empty cluster is re-seeded with
// a point of the largest. Stops early when an iteration gains almost nothing. The same arguments give the
// same centroids. Runs on the calling thread.
KMeans k_means(MatrixView<const float> points, int n_centroids, const KMeansOptions& options);

// Returns the mean of |x - c|^2 over the points, c being each point's nearest centroid.
double mean_squared_distance(MatrixView<const float> points, const std::vector<float>& centroids);

}  // namespace kvant
