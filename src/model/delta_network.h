// DeltaNetwork: what a layer's gated delta net makes of the rows of a batch, and of the states of its
// sequences.
#pragma once

#include <vector>

#include "base/matrix_view.h"
#include "base/team.h"
#include "model/hparams.h"
#include "model/weights.h"

namespace kvant {

struct DeltaRows {
  MatrixView<float> in;   // [n_rows, DeltaNet::width()]: q, k, v, z, then betas and alphas; overwritten
  MatrixView<float> out;  // [n_rows, DeltaNet::inner()]
};

// Rows of one sequence, and its state (Geometry::recurrent_values) before and after them. before: null: it is
// new, which is the same as zeros.
struct DeltaSlice {
  int first_row = 0, n_rows = 0;
  const float* before = nullptr;
  float* after = nullptr;
};

// Of each token (the gated delta rule of Yang et al. 2024, arXiv 2412.06464), for a value head with the
// matrix S [key channel, value channel]:
//   q, k, v = SiLU(sums over the newest `kernel` tokens, channel by channel); q and k with a length of 1
//   g = exp(a softplus(alpha + dt_bias)), b = sigmoid(beta)
//   S <- g S + k (b (v - g S^T k))^T,  y = S^T q / sqrt(head_dim)
//   out = RMS norm(y) SiLU(z)
// A token's result depends on what lies before it alone, to the bit: not on how a prompt is cut, nor on other
// sequences or on the number of threads.
//
// A layer's state is the convolution's newest inputs [kernel - 1, channels], the oldest first, and S of each
// value head in blocks of kDeltaColumns columns, each [key channel, kDeltaColumns].
// Session files hold it as it is: another order of its values needs another version of those.
class DeltaNetwork {
 public:
  explicit DeltaNetwork(const Hparams& hparams);

  // For the layers that run from now on.
  void set_slices(std::vector<DeltaSlice> slices) { slices_ = std::move(slices); }

  // Every thread of the team calls it with the same arguments, maybe before others have computed their part
  // of the rows; it returns when all of `out` and of the states is written. place: of the layer among its
  // kind.
  void run(const DeltaNetWeights& weights, int place, const DeltaRows& rows, Team& team);

 private:
  class Layer;

  DeltaNet net_;
  bool grouped_;
  float norm_epsilon_;
  std::vector<DeltaSlice> slices_;
};

}  // namespace kvant
