// Trellis-coded rows (trellis.h): the search for a row's symbols.
#pragma once

#include <cstdint>

#include "format/trellis_branches.h"
#include "format/trellis_viterbi.h"

namespace kvant {

class TrellisEncoder {
 public:
  explicit TrellisEncoder(const TrellisTable& table, const ViterbiKernel& kernel = best_viterbi())
      : branches_(table), kernel_(kernel) {}

  // symbols[row][i]: the B bits that value i appends to its row's stream. values: [n_rows, n], finite, of
  // about unit variance. n: a multiple of 8, at least 16, at most kMaxHeadDim.
  //
  // A row's stream is a circle, so its path must end in the node where it began: the seam. The Viterbi
  // algorithm runs over the row's last values, to know where to begin, and then over all. The path's node at
  // the seam, which both sides have chosen, is asked of the row's end; that changes the path's last nodes,
  // and hardly ever the seam again. The result is the best path through that node but for the grid of bins
  // and costs (trellis_branches.cc), on every processor the same.
  void encode(const float* values, int n_rows, int n, std::uint16_t* symbols) const;

  // seams[row]: a node in which a good path begins and ends, as the row's last and first values say.
  void find_seams(const float* values, int n_rows, int n, std::uint8_t* seams) const;

 private:
  TrellisBranches branches_;
  const ViterbiKernel& kernel_;
};

}  // namespace kvant
