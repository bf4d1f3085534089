// Reads ggml's quantized weights as codes in blocks (code_gemm.h).
#pragma once

#include "base/code_gemm.h"

struct ggml_tensor;

namespace kvant {

// Returns whether a weight's blocks have one scale and at most one offset: Q4_0, Q4_1, Q8_0.
bool has_code_blocks(const ggml_tensor* weight);

// Reads rows [first, first + n) of such a weight, n <= kCodePanel. The rest of the panel is arbitrary.
void fill_panel(const ggml_tensor* weight, int first, int n, CodePanel& panel);

}  // namespace kvant
