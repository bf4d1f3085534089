// Shows how a recipe's divergence is distributed over the scored positions. The tail shows the divergence of
// the worst positions. The drift shows whether the divergence grows along the context.
#pragma once

#include <vector>

#include "eval/logit_metrics.h"

namespace kvant {

// Says that a share of the positions has a divergence of at least `kld`.
struct TailPoint {
  double share = 0;  // a share between 1 / positions and 1
  double kld = 0;
};
// Returns points from share 1 downwards, five per power of ten, until the share is a single position.
std::vector<TailPoint> divergence_tail(const PositionScores& positions);

// Holds means over the positions [first, first + count) of the scored half of every chunk.
struct DriftBin {
  int first = 0, count = 0;
  double kld = 0, top1 = 0;
};
// Returns n_bins bins of almost equal size. n_chunks must divide the number of positions.
std::vector<DriftBin> divergence_drift(const PositionScores& positions, int n_chunks, int n_bins);

}  // namespace kvant
