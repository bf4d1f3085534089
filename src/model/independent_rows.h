// Finds the largest small batch in which other sequences do not change a sequence's bits. A server batches
// that many completions, and each completion then has the bits that it would have alone.
#pragma once

#include "model/weights.h"

namespace kvant {

// Returns the largest n below MatrixProduct::kGemmRows for which ggml's products of up to n rows have the
// same bits as products of single rows. For more rows, ggml uses other kernels, which sum some types in
// a different order. The function tries a few outputs of one weight of each type and size.
int independent_rows(const Weights& weights, int n_layers);

}  // namespace kvant
