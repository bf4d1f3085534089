// How many rows a small batch may have so that what runs beside a sequence doesn't change its bits.
#pragma once

#include "model/weights.h"

namespace kvant {

// The largest n below MatrixProduct::kGemmRows such that ggml's products of 1 to n rows with these weights
// give every row the bits that it has alone. ggml takes other kernels for more rows: with some types of
// weights they add up in another order. Found by trying a few rows of a weight of every type and size.
int independent_rows(const Weights& weights, int n_layers);

}  // namespace kvant
