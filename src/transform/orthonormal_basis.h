// Makes the map of the transforms `pca` and `oscar`, a rotation to an orthonormal basis. The two transforms
// differ only in how calibration chooses the basis. The transform `nova` shares the products with matrices.
#pragma once

#include "transform/transform.h"

namespace kvant {

// Makes the map x -> x B^T, where the rows of B [d, d], the constants called `constant_name`, are the basis.
// Queries map like keys because B^-1 = B^T. Returns an error if B is not orthonormal or if
// calibrated_constants() returns one.
Result<std::unique_ptr<TransformStep>> make_orthonormal_basis(int head_dim, const HeadConstants& constants,
                                                              const std::string& constant_name);

// Multiplies each row of x [n, d] by `matrix` [d, d], in place.
void multiply_rows(MatrixView<float> x, const std::vector<float>& matrix);
// Returns the transpose of `matrix` [d, d].
std::vector<float> transposed(std::span<const float> matrix, int d);

constexpr std::size_t basis_size(int head_dim) {
  return static_cast<std::size_t>(head_dim) * head_dim;
}

}  // namespace kvant
