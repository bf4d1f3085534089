// TrellisEncoder searches for the symbols of trellis-coded rows (trellis.h) with the least squared error, for
// the format tcq. TrellisEncoder runs the Viterbi search of trellis_viterbi.h around the circle of a row.
#pragma once

#include <cstdint>

#include "format/trellis_branches.h"
#include "format/trellis_viterbi.h"

namespace kvant {

class TrellisEncoder {
 public:
  explicit TrellisEncoder(const TrellisTable& table, const ViterbiKernel& kernel = best_viterbi())
      : branches_(table), kernel_(kernel) {}

  // Computes symbols[row][i], the B bits that value i appends to its row's stream. `values` [n_rows, n] are
  // finite, with a variance of about 1. n is a multiple of 8, at least 16 and at most kMaxHeadDim.
  //
  // A row's stream is a circle, so a path must end in the node where it began, the seam. The Viterbi
  // algorithm first runs over the row's last values to find a start, and then over all values. At the seam,
  // the resulting path has a node that the values on both sides have chosen. The path is then forced to end
  // in that node. Forcing changes the path's last nodes, but hardly ever the seam. The result is the best
  // path through that node, up to the rounding of bins and costs (trellis_branches.cc). Every processor gives
  // the same result.
  void encode(const float* values, int n_rows, int n, std::uint16_t* symbols) const;

  // Computes seams[row], a node in which a good path begins and ends. Only the row's last and first values
  // affect the choice.
  void find_seams(const float* values, int n_rows, int n, std::uint8_t* seams) const;

 private:
  TrellisBranches branches_;
  const ViterbiKernel& kernel_;
};

}  // namespace kvant
