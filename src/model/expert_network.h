// ExpertNetwork computes a layer's experts for the rows of a batch.
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
  MatrixView<float> shared;  // [n_rows, n_embd]: output of the network that all rows use; no columns: none
  MatrixView<float> y;       // [n_rows, n_embd]; may be x if there are many rows
};

// Each (row, chosen expert) is a pair. Pairs of one expert are adjacent, so its weights are read once. As in
// MatrixProduct, few rows use ggml's dot products with weights as they are stored, and batches use F32
// products of dequantized weights. A row's bits depend on no other row.
class ExpertNetwork {
 public:
  ExpertNetwork(const Hparams& hparams, int n_threads);

  // Call it before batches of n_rows rows. Returns false if memory is short.
  bool reserve(int n_rows);

  // Every thread of the team calls it with the same arguments (except x, see there), possibly before others
  // have computed their part of the rows. It returns when all of y is written.
  void run(const LayerWeights& weights, const ExpertRows& rows, Team& team);

 private:
  struct Run {
    int expert, first, n;  // pairs
  };
  // Each thread has its own memory.
  struct Scratch {
    std::vector<std::uint8_t> quantized;           // rows in the form for the weights' dot products
    std::vector<std::uint8_t> quantized_for_gate;  // used if gate needs another form than up
    std::vector<float> weights;                    // a dequantized block of weight rows
    std::vector<float> up;                         // a block of outputs
  };
  class Layer;

  void route(const LayerWeights& weights, const ExpertRows& rows);

  Experts rules_;
  Activation activation_;
  int n_embd_;
  // These members belong to the layer that runs.
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
