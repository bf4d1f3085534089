// ggml's quantized weights as codes in blocks (code_gemm.h).
#pragma once

#include "base/code_gemm.h"

struct ggml_tensor;

namespace kvant {

// Whether a weight is of a type whose blocks have one scale, and an offset at most: Q4_0, Q4_1, Q8_0.
bool has_code_blocks(const ggml_tensor* weight);

// Rows [first, first + n) of such a weight, n <= kCodePanel. What the panel holds beyond them is arbitrary.
void fill_panel(const ggml_tensor* weight, int first, int n, CodePanel& panel);

}  // namespace kvant
