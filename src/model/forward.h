// Forward is the CPU's executor. A team of threads runs the parts of a graph, and graphs are kept for shapes
// that recur. Attention sites call the backend.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/team.h"
#include "model/executor.h"
#include "model/transformer_graph.h"

struct ggml_threadpool;

namespace kvant {

class Forward final : public Executor {
 public:
  // `hparams` and `weights` must outlive the object.
  Forward(const Hparams& hparams, const Weights& weights, int n_threads);
  ~Forward() override;
  Forward(const Forward&) = delete;
  Forward& operator=(const Forward&) = delete;

  // If memory is short, run() fails before any attention has run.
  Status run(Step& step, AttentionBackend& backend, const ForwardRows& rows,
             MatrixView<float> logits) override;

 private:
  Result<TransformerGraph*> graph_for(const ForwardRows& rows);
  void set_states(const Step& step);
  Status compute(const TransformerGraph& graph);

  const Hparams& hparams_;
  const Weights& weights_;
  StandingTeam team_;
  MatrixProduct product_;
  ExpertNetwork experts_;
  DeltaNetwork delta_net_;
  AttentionCall call_;
  std::vector<std::unique_ptr<TransformerGraph>> graphs_;  // the newest comes first
  // Each thread has a buffer of its own, because ggml sees a thread's part as a graph that runs alone.
  std::vector<std::vector<std::uint8_t>> work_;
  std::vector<ggml_threadpool*> threadpools_;
};

}  // namespace kvant
