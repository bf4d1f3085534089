// Chooses initial centroids for k-means. The candidates are only a part of the points, which makes the start
// fast.
#pragma once

#include <random>
#include <vector>

#include "base/matrix_view.h"

namespace kvant {

// Runs k-means++ (Arthur and Vassilvitskii 2007, section 2.2). The algorithm draws the centroids in turn from
// the points, with probability proportional to the squared distance from the centroids so far. Candidates are
// at most `n_drawn` evenly spread points of points [n, dim], which is contiguous. Returns the centroids
// [n_centroids, dim]. If there are fewer distinct points, centroids repeat.
std::vector<float> spread_centroids(MatrixView<const float> points, int n_centroids, int n_drawn,
                                    std::mt19937_64& random);

}  // namespace kvant
