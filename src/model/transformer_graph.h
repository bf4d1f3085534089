// The compute graph of a decoder-only transformer for one batch shape.
#pragma once

#include <functional>

#include "attention/attention.h"
#include "base/team.h"
#include "model/hparams.h"
#include "model/matrix_product.h"
#include "model/weights.h"

struct ggml_cgraph;
struct ggml_context;
struct ggml_gallocr;
struct ggml_tensor;

namespace kvant {

// Attention of one layer over the rows of a batch. Every thread of the team calls it.
using LayerAttention = std::function<void(int layer, const LayerRows& rows, Team& team)>;

// What the attention ops of a graph call; set anew for every run.
struct AttentionCall {
  const LayerAttention* attention = nullptr;
  TeamState team;
};

// Built once for a number of rows and of wanted logits, run many times with other tokens.
class TransformerGraph {
 public:
  // Builds and allocates the graph. n_logit_rows may be 0: the graph then ends with the last layer's
  // attention. weights, product and call must outlive it. An error when memory is short.
  static Result<std::unique_ptr<TransformerGraph>> build(const Hparams& hparams, const Weights& weights,
                                                         MatrixProduct& product, AttentionCall& call,
                                                         int n_rows, int n_logit_rows);
  ~TransformerGraph();

  int n_rows() const { return n_rows_; }
  int n_logit_rows() const { return n_logit_rows_; }
  ggml_cgraph* graph() const { return graph_; }
  std::int64_t bytes() const;  // of activations

  std::int32_t* tokens() const;      // [n_rows]
  std::int32_t* positions() const;   // [n_rows]
  std::int32_t* logit_rows() const;  // [n_logit_rows]: indices of rows
  const float* logits() const;       // [n_logit_rows, n_vocab], after a run

 private:
  class Builder;
  struct AttentionSite {
    AttentionCall* call;
    int layer;
    int head_dim;
  };
  TransformerGraph(int n_rows, int n_logit_rows);
  static void attention_op(ggml_tensor* out, int thread, int n_threads, void* site);

  int n_rows_;
  int n_logit_rows_;
  ggml_context* context_ = nullptr;
  ggml_gallocr* allocator_ = nullptr;
  ggml_cgraph* graph_ = nullptr;
  ggml_tensor* tokens_ = nullptr;
  ggml_tensor* positions_ = nullptr;
  ggml_tensor* logit_rows_ = nullptr;
  ggml_tensor* logits_ = nullptr;
  std::vector<AttentionSite> sites_;
};

}  // namespace kvant
