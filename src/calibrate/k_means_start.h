// Initial centroids for k-means.
#pragma once

#include <random>
#include <vector>

#include "base/matrix_view.h"

namespace kvant {

// k-means++ (Arthur and Vassilvitskii 2007, section 2.2): each next centroid is a point drawn with
// probability proportional to its squared distance from the centroids so far. The candidates are at most
// `n_drawn` of the points, evenly spread. points: [n, dim], contiguous. Returns [n_centroids, dim], with
// repeats if there are fewer distinct points.
std::vector<float> spread_centroids(MatrixView<const float> points, int n_centroids, int n_drawn,
                                    std::mt19937_64& random);

}  // namespace kvant
