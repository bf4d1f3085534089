// oscar is the map x -> x B^T. The rows of B [d, d] are an orthonormal basis, which calibration derives from
// what attention reads (OSCAR, arXiv 2605.17757, section 3). For K the basis consists of the eigenvectors of
// the queries' second moments Q^T Q. For V the basis consists of the eigenvectors of V^T D V, where the
// diagonal matrix D holds each token's expected squared score k^T Q^T Q k. Recipes apply a Hadamard matrix
// after this transform.
#include "transform/kinds.h"
#include "transform/orthonormal_basis.h"

namespace kvant {

const TransformKind oscar_transform = {
    "oscar",   "rotation to the directions that attention reads most", true, false, make_orthonormal_basis,
    basis_size};

}  // namespace kvant
