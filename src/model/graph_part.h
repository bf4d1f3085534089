// GraphPart: what one thread of a team computes of a transformer, as a ggml graph that this thread runs
// alone.
//
// The threads' graphs run side by side and wait for each other at barriers of kvant's own, which are ops in
// them: few, because a thread needs the others' results only where a matrix product reads all channels of a
// row. How the work is split depends on the batch:
// - few rows (decoding): each thread computes some outputs of every product, for all rows. Norms and
// residuals take
//   microseconds: each thread computes them all, in memory of its own, rather than wait for another's.
// - many rows (prompts): each thread takes some rows through norms, residuals and activations, and through
// products
//   with repacked weights; products with plain weights are shared out by MatrixProduct.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "attention/attention.h"
#include "base/team.h"
#include "model/delta_network.h"
#include "model/expert_network.h"
#include "model/hparams.h"
#include "model/matrix_product.h"
#include "model/weights.h"

struct ggml_cgraph;
struct ggml_context;
struct ggml_tensor;

namespace kvant {

// Attention of one layer, as the cache counts them, over the rows of a batch. Every thread of the team calls
// it.
using LayerAttention = std::function<void(int layer, const LayerRows& rows, Team& team)>;

// What the attention ops of a graph call; set anew for every run.
struct AttentionCall {
  const LayerAttention* attention = nullptr;
  TeamState team;
};

// Activations [rows, cols] in memory. Where each thread has its own, they are not shared.
struct ActivationRows {
  float* data = nullptr;
  int cols = 0;
  bool shared = true;
};

// The activations of a number of rows in the residual stream. y is what a block adds to x; with many rows it
// may be h, which nobody reads then; not where attention and the feed-forward network read the same h.
struct ResidualRows {
  int n_rows = 0;
  ActivationRows x, h, y;  // [n_rows, n_embd]
};

// What the parts of a graph compute on, as one thread sees it.
struct GraphBuffers {
  std::int32_t *tokens, *positions;  // [n_rows]
  std::int32_t* logit_rows;          // [n_logit_rows]
  float* query_scales;               // [n_rows]: what q is multiplied by; null: 1
  ResidualRows all, wanted;          // of all rows; of those whose logits are wanted, in the last layer
  ActivationRows qkv;       // [n_rows, AttentionColumns::width or DeltaNet::width()], of the widest layer
  ActivationRows attended;  // [n_rows, n_heads * head_dim or DeltaNet::inner()], likewise
  ActivationRows wanted_attended;  // [n_logit_rows, likewise]
  ActivationRows gate, up;         // [n_rows, n_ff], or wider where experts share a wider network
  ActivationRows router;           // [n_rows, n_experts]: logits
  ActivationRows shared;           // [n_rows, n_embd]: of the network that experts share
  ActivationRows beside;           // [n_rows, n_embd]: of the network that stands beside experts
  // [n_rows, n_layers n_layer_embd]: what layers read of tokens; two, for what both are made of.
  ActivationRows layer_inputs, layer_tokens;
  ActivationRows wanted_inputs;  // [n_logit_rows, n_layer_embd]: of the last layer
  ActivationRows layer_gates;    // [n_rows, n_layer_embd]
  ActivationRows logits;         // [n_logit_rows, n_vocab]
  ActivationRows states;  // [n_logit_rows, n_embd]: wanted instead of logits; without data: they are not
};

// Where q, k and v lie in a row of what a layer with attention projects. With gates q's projection gives
// heads of q and of gates in turn, and q, normed, gets columns of its own.
struct AttentionColumns {
  AttentionColumns(const Hparams& h, int layer)
      : projected_q(h.q_columns(layer)),
        k(projected_q),
        v(k + h.n_kv(layer)),
        q(h.gated_heads ? v + h.n_kv(layer) : 0),
        width(v + h.n_kv(layer) + (q > 0 ? h.n_q(layer) : 0)) {}
  int projected_q;  // from column 0 on
  int k, v, q;      // first columns
  int width;
};

// What all parts of a graph have in common; outlives them.
struct GraphParts {
  const Hparams& hparams;
  const Weights& weights;
  MatrixProduct& product;
  ExpertNetwork& experts;
  DeltaNetwork& delta_net;
  AttentionCall& call;
  int n_threads;
  bool short_rope = false;  // RoPE with the factors for short sequences
};

class GraphPart {
 public:
  GraphPart(const GraphParts& parts, int thread, const GraphBuffers& buffers);
  ~GraphPart();
  GraphPart(const GraphPart&) = delete;
  GraphPart& operator=(const GraphPart&) = delete;

  ggml_cgraph* graph() const { return graph_; }

 private:
  class Builder;
  struct Site {
    GraphPart* part;
    int layer;
  };
  Team team() const { return {thread_, parts_.n_threads, parts_.call.team}; }
  static void attention_op(ggml_tensor* out, int, int, void* site);
  static void delta_net_op(ggml_tensor* out, int, int, void* site);
  static void experts_op(ggml_tensor* out, int, int, void* site);
  static void barrier_op(ggml_tensor*, int, int, void* part);

  GraphParts parts_;
  int thread_;
  ggml_context* context_ = nullptr;
  ggml_cgraph* graph_ = nullptr;
  std::vector<Site> sites_;  // [n_layers]
};

}  // namespace kvant
