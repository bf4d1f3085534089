// Computes principal directions of values, for the transforms `pca` and `oscar`. Principal directions are the
// eigenvectors of second moments.
#pragma once

#include <span>
#include <vector>

#include "base/matrix_view.h"

namespace kvant {

// Returns the second moments x^T diag(weights) x, [d, d], with weights [n]. If `weights` is empty, all
// weights are 1.
std::vector<double> second_moments(MatrixView<const float> x, std::span<const double> weights = {});

// Returns the eigenvectors of the symmetric `moments` [d, d] as rows of an orthonormal matrix [d, d]. The
// vector of the largest eigenvalue comes first.
std::vector<float> principal_directions(std::vector<double> moments, int d);

}  // namespace kvant
