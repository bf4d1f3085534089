// pca: x -> x B^T, where the rows of B [d, d] are the d principal directions from calibration, orthonormal,
// with the largest variance first (ResQ, arXiv 2412.14363). The most important directions become the first
// channels, which ResQ's format (format/hi.cc) keeps in 16 bits.
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
