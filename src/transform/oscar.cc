// oscar: x -> x B^T, with an orthonormal basis of what attention reads as the rows of B [d, d] (OSCAR, arXiv
// 2605.17757, section 3): for K the eigenvectors of its queries' second moments Q^T Q, for V those of V^T D
// V, D diagonal with each token's expected squared score, k^T Q^T Q k. A Hadamard matrix comes after it.
#include "transform/kinds.h"
#include "transform/orthonormal_basis.h"

namespace kvant {

const TransformKind oscar_transform = {
    "oscar",   "rotation to the directions that attention reads most", true, false, make_orthonormal_basis,
    basis_size};

}  // namespace kvant
