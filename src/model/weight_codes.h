// Reads ggml's quantized weights as blocks of codes, for the product of codes (code_gemm.h). Only types with
// simple blocks can be read in this way.
#pragma once

#include "base/code_gemm.h"

struct ggml_tensor;

namespace kvant {

// Returns whether each block of the weight has one scale and at most one offset, which holds for Q4_0, Q4_1
// and Q8_0.
bool has_code_blocks(const ggml_tensor* weight);

// Reads rows [first, first + n) of a weight for which has_code_blocks() is true; n <= kCodePanel. The rest of
// the panel is undefined.
void fill_panel(const ggml_tensor* weight, int first, int n, CodePanel& panel);

}  // namespace kvant
