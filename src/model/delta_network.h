// DeltaNetwork computes a layer's gated delta net from the rows of a batch and the states of its sequences.
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

// The rows of one sequence, and its state (Geometry::recurrent_values) before and after them. A null `before`
// means a new sequence, whose state is zeros.
struct DeltaSlice {
  int first_row = 0, n_rows = 0;
  const float* before = nullptr;
  float* after = nullptr;
};

// For each token, and each value head with matrix S [key channel, value channel] (the gated delta rule of
// Yang et al. 2024, arXiv 2412.06464):
//   q, k, v = SiLU(sums over the newest `kernel` tokens, channel by channel); q and k with a length of 1
//   g = exp(a softplus(alpha + dt_bias)), b = sigmoid(beta)
//   S <- g S + k (b (v - g S^T k))^T,  y = S^T q / sqrt(head_dim)
//   out = RMS norm(y) SiLU(z)
// A token's result depends only on earlier tokens, to the bit. It does not depend on how a prompt is cut, on
// other sequences, or on the number of threads.
//
// A layer's state holds the convolution's newest inputs [kernel - 1, channels], oldest first. After them
// comes S of each value head in blocks of kDeltaColumns columns, each [key channel, kDeltaColumns]. Session
// files store the state as it is, so another order needs another file version.
class DeltaNetwork {
 public:
  explicit DeltaNetwork(const Hparams& hparams);

  // Sets the slices for the layers that run from now on.
  void set_slices(std::vector<DeltaSlice> slices) { slices_ = std::move(slices); }

  // Every thread of the team calls it with the same arguments, possibly before others have computed their
  // part of the rows. It returns when all of `out` and all states are written. `place` is the layer's number
  // among the delta nets.
  void run(const DeltaNetWeights& weights, int place, const DeltaRows& rows, Team& team);

 private:
  class Layer;

  DeltaNet net_;
  bool grouped_;
  float norm_epsilon_;
  std::vector<DeltaSlice> slices_;
};

}  // namespace kvant
