// pca is the map x -> x B^T. The rows of B [d, d] are the orthonormal principal directions, which calibration
// finds (ResQ, arXiv 2412.14363). The direction with the largest variance comes first. The most important
// directions become the first channels, which ResQ's format (format/hi.cc) keeps in 16 bits.
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
