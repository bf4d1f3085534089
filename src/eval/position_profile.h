// Distribution of a recipe's divergence over the scored positions: its tail, and its drift along the context.
#pragma once

#include <vector>

#include "eval/logit_metrics.h"

namespace kvant {

// This share of the positions has at least this divergence.
struct TailPoint {
  double share = 0;  // 1 .. 1 / positions
  double kld = 0;
};
// Returns points from share 1 down, five per power of ten, until a single position is left.
std::vector<TailPoint> divergence_tail(const PositionScores& positions);

// Means over the positions [first, first + count) of every chunk's scored half.
struct DriftBin {
  int first = 0, count = 0;
  double kld = 0, top1 = 0;
};
// Returns n_bins of (almost) equal size; n_chunks must divide the number of positions.
std::vector<DriftBin> divergence_drift(const PositionScores& positions, int n_chunks, int n_bins);

}  // namespace kvant
