// Finishes the rows of a PartialAttention after the last page. The engine and the CPU library share these
// functions.
#pragma once

#include <cstdint>
#include <vector>

#include "base/linear_correction.h"
#include "device/cpu/kernels/tile.h"

namespace kvant {

// Adds a sink logit to row r, as the score of a token without a value. A row that has seen nothing does not
// change.
void add_sink(float sink, int r, int d, PartialAttention& total);

// Holds the buffers of correct_row().
struct CorrectedRow {
  std::vector<float> phi, correction;
};

// Says by which c KVLinC's correction enters a row: c phi(q) S is added to the accumulator, and c phi(q) P to
// the sum. `relative` uses c = 1, as Algorithm 1 prints it. `absolute` uses equation 5 with both sides
// multiplied by e^-m, where m = max(row's maximum, 0). So c = e^-m is at most 1, and the exponentials of a
// row without positive scores stay unscaled.
enum class CorrectionScale : std::uint8_t { relative, absolute };

// Corrects row r. `map` has the weights of phi_q for the row's query head (base/linear_correction.h), and q
// is [d], without the softmax scale. A row that has seen nothing does not change.
void correct_row(const float* map, const float* q, const float* sums, CorrectionScale scale, int r, int d,
                 CorrectedRow& buffers, PartialAttention& total);

// Turns row r of the accumulator into the output, and returns the LSE. A row that has seen nothing becomes
// zeros, and its LSE is -infinity.
float finish_row(int r, int d, PartialAttention& total);

}  // namespace kvant
