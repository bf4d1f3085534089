// Computes eigenvalues and eigenvectors of symmetric matrices. The matrices have at most a few hundred rows,
// for which Jacobi's method is exact and fast enough.
#pragma once

#include <vector>

namespace kvant {

struct SymmetricEigen {
  std::vector<double> values;   // [d], the largest first
  std::vector<double> vectors;  // [d, d], orthonormal rows
};

// Decomposes `matrix` [d, d], whose values must be finite, by cyclic Jacobi rotations (Golub and Van Loan,
// section 8.5).
SymmetricEigen symmetric_eigen(std::vector<double> matrix, int d);

}  // namespace kvant
