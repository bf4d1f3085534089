// What joins the rows of a PartialAttention behind the last page, by what kvant/kvant.h says.
#pragma once

#include "device/cpu/kernels/tile.h"
#include "kvant/kvant.h"

namespace kvant::device::cpu {

// Adds a sink logit to row r, as the score of a token without a value. Rows that have seen nothing stay so.
void add_sink(float sink, int r, int d, PartialAttention& total);

// Corrects row r. sums: the states of its sequence and KV head. q: [d], without the softmax scale.
void correct_row(const kvant_correction& correction, const float* sums, int query_head, const float* q, int r,
                 int d, PartialAttention& total);

// Turns row r of the accumulator into the output, and returns the log-sum-exp. Rows that have seen nothing
// become zeros, with -infinity.
float finish_row(int r, int d, PartialAttention& total);

}  // namespace kvant::device::cpu
