// Computes a layer's experts for the rows of a batch on the CPU. All pairs of a row and a chosen expert are
// sorted by expert, so the weights of each expert are read only once.
#pragma once

#include <cstdint>
#include <vector>

#include "base/matrix_view.h"
#include "base/team.h"
#include "model/hparams.h"
#include "model/weights.h"

namespace kvant {

struct ExpertRows {
  MatrixView<float> x;       // [n_rows, n_embd]; if there are few rows, each thread may have its own copy
  MatrixView<float> logits;  // [n_rows, n_experts], the router's logits, overwritten
  MatrixView<float> shared;  // [n_rows, n_embd], outputs of the network that all rows use; no columns if
                             // there is none
  MatrixView<float> y;       // [n_rows, n_embd]; if there are many rows, y may be x
};

// ExpertNetwork calls each (row, chosen expert) a pair. Pairs of one expert are adjacent, so the expert's
// weights are read once. As in MatrixProduct, few rows use ggml's dot products with weights as they are
// stored, and batches use F32 products with dequantized weights. The bits of a row do not depend on other
// rows.
class ExpertNetwork {
 public:
  ExpertNetwork(const Hparams& hparams, int n_threads);

  // Makes room for batches of n_rows rows; call reserve() before them. Returns false if memory is short.
  bool reserve(int n_rows);

  // Computes one layer. Every thread of the team calls run() with the same arguments, except that `x` may be
  // the thread's own. Other threads may still be writing their part of the rows. The function returns when
  // all of y is written.
  void run(const LayerWeights& weights, const ExpertRows& rows, Team& team);

 private:
  struct Run {
    int expert, first, n;  // pairs [first, first + n) belong to `expert`
  };
  // Scratch is the memory of one thread.
  struct Scratch {
    std::vector<std::uint8_t> quantized;           // rows in the form that the weights' dot products read
    std::vector<std::uint8_t> quantized_for_gate;  // rows for gate, if gate needs a different form than up
    std::vector<float> weights;                    // a dequantized block of weight rows
    std::vector<float> up;                         // a block of outputs
  };
  class Layer;

  void route(const LayerWeights& weights, const ExpertRows& rows);

  Experts rules_;
  Activation activation_;
  int n_embd_;
  // The members from ids_ to out_ belong to the layer that runs.
  std::vector<std::int32_t> ids_;  // [n_rows, n_used]
  std::vector<float> weights_;     // [n_rows, n_used]
  std::vector<int> pair_of_;       // [n_rows, n_used], the pair of each slot
  std::vector<int> row_of_;        // [pairs]
  std::vector<int> counts_;        // [n_experts]
  std::vector<Run> runs_;
  std::vector<float> shared_weights_;  // [n_rows]
  // [pairs, n_embd], [pairs, n_ff] and [pairs, n_embd]. Only batches use x_ and out_.
  std::vector<float> x_, hidden_, out_;
  std::vector<Scratch> scratch_;  // one per thread
};

}  // namespace kvant
