// Computes the fast Walsh-Hadamard transform for the transforms hadamard and rhadamard. The fast transform
// takes d log d additions per row instead of the d^2 products of a matrix product.
#pragma once

#include "base/matrix_view.h"

namespace kvant {

// Returns the largest power of two that divides head_dim, which is the order of the blocks of H.
inline int hadamard_order(int head_dim) {
  return head_dim & -head_dim;
}

// Computes x <- x H in place. Each row is cut into blocks of `order` channels. Each block is multiplied by
// the orthonormal matrix H_ij = (-1)^popcount(i & j) / sqrt(order) (Sylvester's ordering), which is symmetric
// and its own inverse. x is [n, d]. `order` is a power of two >= 8 that divides d.
void walsh_hadamard(MatrixView<float> x, int order);

}  // namespace kvant
