// Runs k-means: finds centroids with a small mean squared distance to the points (Lloyd 1982). Codebooks for
// vector quantization are learned with k-means.
#pragma once

#include <cstdint>
#include <vector>

#include "base/matrix_view.h"

namespace kvant {

struct KMeansOptions {
  int iterations = 30;  // the most iterations of Lloyd's algorithm (VecInfer, section 4.1)
  std::uint64_t seed = 0;
};

struct KMeans {
  std::vector<float> centroids;  // [n_centroids, dim]
  double error_before = 0;       // the mean of |x - c|^2 with the initial centroids
  double error_after = 0;        // the mean of |x - c|^2 with the final centroids
};

// Clusters points [n, dim], contiguous, n > 0, with dim 2, 4 or 8. n_centroids is a multiple of 16 and at
// most 65536. The initial centroids come from k-means++ (Arthur and Vassilvitskii 2007) on a part of the
// points. An empty cluster is re-seeded with a point of the largest cluster. The iterations stop early when
// an iteration gains almost nothing. The same arguments give the same centroids. The function runs on the
// calling thread.
KMeans k_means(MatrixView<const float> points, int n_centroids, const KMeansOptions& options);

// Returns the mean of |x - c|^2 over the points, where c is each point's nearest centroid.
double mean_squared_distance(MatrixView<const float> points, const std::vector<float>& centroids);

}  // namespace kvant
