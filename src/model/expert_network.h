// ExpertNetwork: what a layer's experts make of the rows of a batch.
#pragma once

#include <cstdint>
#include <vector>

#include "base/matrix_view.h"
#include "base/team.h"
#include "model/hparams.h"
#include "model/weights.h"

namespace kvant {

struct ExpertRows {
  MatrixView<float> x;       // [n_rows, n_embd]; with few rows each thread may have its own copy
  MatrixView<float> logits;  // [n_rows, n_experts]: the router's, overwritten
  MatrixView<float> shared;  // [n_rows, n_embd]: of the network that all rows go through; no columns: none
  MatrixView<float> y;       // [n_rows, n_embd]; may be x where there are many rows
};

// Every (row, expert of its choice) is a pair; pairs of the same expert lie one after another, so that its
// weights are read once. As MatrixProduct has it: a few rows are multiplied by ggml's dot products with
// weights as they are stored, and batches by F32 products of dequantized weights; a row's bits depend on no
// other row.
class ExpertNetwork {
 public:
  ExpertNetwork(const Hparams& hparams, int n_threads);

  // Before batches of so many rows; false: memory is short.
  bool reserve(int n_rows);

  // Every thread of the team calls it with the same arguments (but x, see there), maybe before others have
  // computed their part of the rows; it returns when all of y is written.
  void run(const LayerWeights& weights, const ExpertRows& rows, Team& team);

 private:
  struct Run {
    int expert, first, n;  // pairs
  };
  // Of one thread.
  struct Scratch {
    std::vector<std::uint8_t> quantized;           // rows as the weights' dot products take them
    std::vector<std::uint8_t> quantized_for_gate;  // where gate's take them in another form than up's
    std::vector<float> weights;                    // a dequantized block of weight rows
    std::vector<float> up;                         // a block of outputs
  };
  class Layer;

  void route(const LayerWeights& weights, const ExpertRows& rows);

  Experts rules_;
  Activation activation_;
  int n_embd_;
  // Of the layer that runs.
  std::vector<std::int32_t> ids_;  // [n_rows, n_used]
  std::vector<float> weights_;     // [n_rows, n_used]
  std::vector<int> pair_of_;       // [n_rows, n_used]: its pair
  std::vector<int> row_of_;        // [pairs]
  std::vector<int> counts_;        // [n_experts]
  std::vector<Run> runs_;
  std::vector<float> shared_weights_;  // [n_rows]
  std::vector<float> x_, hidden_,
      out_;                       // [pairs, n_embd], [pairs, n_ff], [pairs, n_embd]; x_ and out_ of batches
  std::vector<Scratch> scratch_;  // by thread
};

}  // namespace kvant
