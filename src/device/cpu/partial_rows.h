// Finishes the rows of a PartialAttention after the last page, by the rules of kvant/kvant.h. Decode and
// prompt attention share these functions.
#pragma once

#include "device/cpu/kernels/tile.h"
#include "kvant/kvant.h"

namespace kvant::device::cpu {

// Adds a sink logit to row r, as the score of a token without a value. A row that has seen nothing does not
// change.
void add_sink(float sink, int r, int d, PartialAttention& total);

// Corrects row r. `sums` are the states of the row's sequence and KV head. `q` is [d], without the softmax
// scale.
void correct_row(const kvant_correction& correction, const float* sums, int query_head, const float* q, int r,
                 int d, PartialAttention& total);

// Turns row r of the accumulator into the output, and returns the LSE. A row that has seen nothing becomes
// zeros, and its LSE is -infinity.
float finish_row(int r, int d, PartialAttention& total);

}  // namespace kvant::device::cpu
