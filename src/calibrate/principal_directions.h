// Principal directions of values, for the transform `pca`.
#pragma once

#include <vector>

#include "base/matrix_view.h"

namespace kvant {

// The eigenvectors of x^T x as the rows of an orthonormal matrix [d, d], the largest eigenvalue first: the
// directions in which the values are largest (ResQ, section 3.2). About zero and not about the mean, because
// the transform leaves the mean where it is. x: [n, d], finite. By Jacobi's rotations, in double precision.
std::vector<float> principal_directions(MatrixView<const float> x);

}  // namespace kvant
