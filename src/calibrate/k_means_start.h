// The first centroids of k-means.
#pragma once

#include <random>
#include <vector>

#include "base/matrix_view.h"

namespace kvant {

// k-means++ (Arthur and Vassilvitskii 2007, section 2.2): each next centroid is a point drawn with a
// probability proportional to its squared distance from the centroids so far. Drawn from at most `n_drawn`
// of the points, evenly spread. points: [n, dim], contiguous; returns [n_centroids, dim], with repeats where
// there are fewer different points.
std::vector<float> spread_centroids(MatrixView<const float> points, int n_centroids, int n_drawn,
                                    std::mt19937_64& random);

}  // namespace kvant
