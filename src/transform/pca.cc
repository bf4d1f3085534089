// pca: x -> x B^T, with the d principal directions of calibration as the rows of B [d, d]: orthonormal, the
// direction of largest variance first (ResQ, arXiv 2412.14363). What matters most is then in the first
// channels, which ResQ's format keeps in 16 bits.
#include "transform/kinds.h"
#include "transform/orthonormal_basis.h"

namespace kvant {

const TransformKind pca_transform = {"pca",
                                     "rotation to the principal directions, largest variance first",
                                     true,
                                     false,
                                     make_orthonormal_basis,
                                     basis_size};

}  // namespace kvant
