// GraphPart is one thread's part of a transformer on the CPU, as a ggml graph that the thread runs alone.
//
// The threads' graphs run at the same time and wait for one another at barriers, which are ops of kvant.
// There are few barriers, because a thread needs other threads' results only where a product reads all
// channels of a row. How the work is split depends on the batch:
//     - With few rows (decode), each thread computes some outputs of every product, for all rows.
//       Norms and residuals take only microseconds. Each thread therefore computes all of them in its own
//       memory.
//     - With many rows (prefill), each thread takes some rows through norms, residuals, activations and
//       products with repacked weights. MatrixProduct splits products with plain weights among all threads.
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

// LayerAttention computes the attention of one layer over the rows of a batch. `layer` is the layer's number
// in the cache. Every thread of the team calls the function.
using LayerAttention = std::function<void(int layer, const LayerRows& rows, Team& team)>;

// AttentionCall holds what the attention ops of a graph call. Each run of the graph sets a new AttentionCall.
struct AttentionCall {
  const LayerAttention* attention = nullptr;
  TeamState team;
};

// ActivationRows views activations [rows, cols] in memory. `shared` is false if each thread has its own copy.
struct ActivationRows {
  float* data = nullptr;
  int cols = 0;
  bool shared = true;
};

// ResidualRows holds the activations of a number of rows in the residual stream. y is what a block adds to x.
// With many rows, y may be the same memory as h, because the block has already read h. y must have its own
// memory where attention and the feed-forward network read the same h.
struct ResidualRows {
  int n_rows = 0;
  ActivationRows x, h, y;  // [n_rows, n_embd]
};

// GraphBuffers holds the buffers of a graph for one thread.
struct GraphBuffers {
  std::int32_t *tokens, *positions;  // [n_rows]
  std::int32_t* logit_rows;          // [n_logit_rows]
  float* query_scales;               // [n_rows], factors of q; null if all are 1
  ResidualRows all, wanted;          // for all rows, and in the last layer for the rows whose logits are
                                     // wanted
  ActivationRows qkv;       // [n_rows, AttentionColumns::width or DeltaNet::width()] of the widest layer
  ActivationRows attended;  // [n_rows, n_heads * head_dim or DeltaNet::inner()] of the widest layer
  ActivationRows wanted_attended;  // [n_logit_rows, the columns of `attended`]
  ActivationRows gate, up;         // [n_rows, n_ff], or wider if the network that all rows share is wider
  ActivationRows router;           // [n_rows, n_experts], logits
  ActivationRows shared;           // [n_rows, n_embd], outputs of the network that all rows share besides
                                   // experts
  ActivationRows dense;            // [n_rows, n_embd], outputs of a dense network next to experts
  // layer_inputs holds what layers read of tokens, and layer_tokens holds the layers' own embeddings, from
  // which layer_inputs is computed. Both are [n_rows, n_layers * n_layer_embd].
  ActivationRows layer_inputs, layer_tokens;
  ActivationRows wanted_inputs;  // [n_logit_rows, n_layer_embd] for the last layer
  ActivationRows layer_gates;    // [n_rows, n_layer_embd]
  ActivationRows logits;         // [n_logit_rows, n_vocab]
  ActivationRows states;         // [n_logit_rows, n_embd], wanted in place of logits; without data if not
};

// AttentionColumns says where q, k and v lie in a row of a layer's projections. With gates, the projection
// alternates between a head of q and the head's gates, and the normed q gets columns of its own.
struct AttentionColumns {
  AttentionColumns(const Hparams& h, int layer)
      : projected_q(h.q_columns(layer)),
        k(projected_q),
        v(k + h.n_kv(layer)),
        q(h.gated_heads ? v + h.n_kv(layer) : 0),
        width(v + h.n_kv(layer) + (q > 0 ? h.n_q(layer) : 0)) {}
  int projected_q;  // columns; the projection of q begins at column 0
  int k, v, q;      // the first columns of k, v and q
  int width;
};

// GraphParts holds what all parts of a graph have in common. The members must outlive the parts.
struct GraphParts {
  const Hparams& hparams;
  const Weights& weights;
  MatrixProduct& product;
  ExpertNetwork& experts;
  DeltaNetwork& delta_net;
  AttentionCall& call;
  int n_threads;
  bool short_rope = false;  // RoPE uses LongRoPE's factors for short sequences
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
