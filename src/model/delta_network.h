// Computes a layer's gated delta net on the CPU, from the rows of a batch and the recurrent states of their
// sequences. The delta net's state replaces a KV cache, and its size does not depend on the length of the
// sequence.
#pragma once

#include <vector>

#include "base/matrix_view.h"
#include "base/team.h"
#include "model/hparams.h"
#include "model/weights.h"

namespace kvant {

struct DeltaRows {
  MatrixView<float> in;   // [n_rows, DeltaNet::width()], q, k, v, z, betas and alphas; overwritten
  MatrixView<float> out;  // [n_rows, DeltaNet::inner()]
};

// DeltaSlice describes the rows of one sequence. `before` is the sequence's state
// (Geometry::recurrent_values) before these rows, and `after` is the state after them. A null `before` means
// a new sequence, whose state is zeros.
struct DeltaSlice {
  int first_row = 0, n_rows = 0;
  const float* before = nullptr;
  float* after = nullptr;
};

// DeltaNetwork computes the gated delta rule of Yang et al. 2024 (arXiv 2412.06464). For each token and each
// value head with matrix S [key channel, value channel]:
//     q, k, v = SiLU(sum over the newest `kernel` tokens, channel by channel); q and k are scaled to length 1
//     g = exp(a softplus(alpha + dt_bias)), b = sigmoid(beta)
//     S <- g S + k (b (v - g S^T k))^T,  y = S^T q / sqrt(head_dim)
//     out = RMS norm(y) SiLU(z)
// The bits of a token's result depend only on the token and earlier tokens. The bits do not depend on how a
// prompt is split, on other sequences, or on the number of threads.
//
// A layer's state first holds the newest inputs of the convolution, [kernel - 1, channels], the oldest first.
// The state then holds S of each value head in blocks of kDeltaColumns columns, each [key channel,
// kDeltaColumns]. Session files store the state in this order, so another order needs another file version.
class DeltaNetwork {
 public:
  explicit DeltaNetwork(const Hparams& hparams);

  // Sets the slices of the next step. All layers of the step use them.
  void set_slices(std::vector<DeltaSlice> slices) { slices_ = std::move(slices); }

  // Computes one layer. Every thread of the team calls run() with the same arguments, possibly before other
  // threads have written their part of `rows`. The function returns when all of `out` and all states are
  // written. `place` is the layer's number among the delta nets.
  void run(const DeltaNetWeights& weights, int place, const DeltaRows& rows, Team& team);

 private:
  class Layer;

  DeltaNet net_;
  bool grouped_;
  float norm_epsilon_;
  std::vector<DeltaSlice> slices_;
};

}  // namespace kvant
