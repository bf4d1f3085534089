// Finds how many rows a small batch may have if other sequences must not change a sequence's bits.
#pragma once

#include "model/weights.h"

namespace kvant {

// Returns the largest n below MatrixProduct::kGemmRows for which ggml's products of 1 to n rows give every
// row its bits from a single-row product. ggml uses other kernels for more rows, which add up some types in
// another order. It tries a few rows of a weight of every type and size.
int independent_rows(const Weights& weights, int n_layers);

}  // namespace kvant
