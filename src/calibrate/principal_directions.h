// Principal directions of values, for the transforms `pca` and `oscar`.
#pragma once

#include <span>
#include <vector>

#include "base/matrix_view.h"

namespace kvant {

// Second moments x^T diag(weights) x, [d, d]. weights: [n], or empty if all are 1.
std::vector<double> second_moments(MatrixView<const float> x, std::span<const double> weights = {});

// Returns the eigenvectors of symmetric `moments` [d, d] as the rows of an orthonormal matrix [d, d], the
// largest eigenvalue first.
std::vector<float> principal_directions(std::vector<double> moments, int d);

}  // namespace kvant
