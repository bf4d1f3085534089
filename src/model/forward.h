// Forward: runs batches of tokens through a model, with graphs kept for the shapes that come again.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/matrix_view.h"
#include "base/result.h"
#include "base/team.h"
#include "model/transformer_graph.h"

struct ggml_threadpool;

namespace kvant {

// The rows of one batch.
struct ForwardRows {
  std::span<const std::int32_t> tokens;      // [n_rows], in [0, n_vocab)
  std::span<const std::int32_t> positions;   // [n_rows]: absolute index of each token in its sequence
  std::span<const std::int32_t> logit_rows;  // rows whose logits are wanted
};

class Forward {
 public:
  // hparams and weights must outlive it.
  Forward(const Hparams& hparams, const Weights& weights, int n_threads);
  ~Forward();
  Forward(const Forward&) = delete;
  Forward& operator=(const Forward&) = delete;

  // logits [logit_rows.size(), n_vocab]. An error when memory is short; no attention has run then.
  Status run(const ForwardRows& rows, const LayerAttention& attention, MatrixView<float> logits);

 private:
  Result<TransformerGraph*> graph_for(int n_rows, int n_logit_rows);
  Status compute(const TransformerGraph& graph);

  const Hparams& hparams_;
  const Weights& weights_;
  StandingTeam team_;
  MatrixProduct product_;
  AttentionCall call_;
  std::vector<std::unique_ptr<TransformerGraph>> graphs_;  // the latest first
  // By thread: each runs its part of a graph alone, as ggml sees it.
  std::vector<std::vector<std::uint8_t>> work_;
  std::vector<ggml_threadpool*> threadpools_;
};

}  // namespace kvant
