// The map behind `pca` and `oscar`, a rotation to an orthonormal basis.
#pragma once

#include "transform/transform.h"

namespace kvant {

// The map is x -> x B^T, where the rows of B [d, d] are the basis: the constants called `constant_name`.
// Queries map like keys because B^-1 = B^T. It fails if B is not orthonormal.
Result<std::unique_ptr<TransformStep>> make_orthonormal_basis(int head_dim, const HeadConstants& constants,
                                                              const std::string& constant_name);

constexpr std::size_t basis_size(int head_dim) {
  return static_cast<std::size_t>(head_dim) * head_dim;
}

}  // namespace kvant
