// Finishes the rows of a tile after the last page. The engine's loop and the CPU library share these
// functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/linear_correction.h"
#include "device/cpu/kernels/tile.h"

namespace kvant {

// Says by which c KVLinC's correction enters a row: c phi(q) S is added to the accumulator, and c phi(q) P to
// the sum. `relative` uses c = 1, as Algorithm 1 prints it. `absolute` uses equation 5 with both sides
// multiplied by e^-m, where m = max(row's maximum, 0). So c = e^-m is at most 1, and the exponentials of a
// row without positive scores stay unscaled.
enum class CorrectionScale : std::uint8_t { relative, absolute };

// Says what a row has seen besides pages.
struct RowEnds {
  const float* sink_logits = nullptr;  // by query head of the group; null for none
  // Holds the sums that correct each query of the tile (base/linear_correction.h). Without sums, no row is
  // corrected.
  std::span<const float* const> sums;
  const float* query_maps = nullptr;  // the weights of phi_q, by query head of the group
  CorrectionScale scale = CorrectionScale::relative;
  float softmax_scale = 1;  // the factor in the tile's queries
};

struct FinishedRows {
  std::vector<float> lse;                 // by row of the tile
  std::vector<float> q, phi, correction;  // buffers
};

// Adds the sink logits to the tile's rows, each as the score of a token without a value. `sink_logits` may be
// null. A row that has seen nothing does not change.
void add_sinks(const QueryTile& tile, const float* sink_logits, int d, PartialAttention& total);

// Corrects the tile's rows, adds sink logits, and turns the accumulator into outputs. A row that has seen
// nothing becomes zeros, and its LSE is -infinity.
void finish_rows(const QueryTile& tile, int d, const RowEnds& ends, PartialAttention& total,
                 FinishedRows& finished);

}  // namespace kvant
