#include "model/forward.h"

#include <ggml-cpu.h>
#include <ggml.h>

#include <algorithm>
#include <atomic>
#include <cstring>

namespace kvant {
namespace {

constexpr std::size_t kMaxGraphs = 4;
// Older graphs are dropped while the activations of all graphs together exceed this size.
constexpr std::int64_t kMaxIdleBytes = 64 << 20;

}  // namespace

Forward::Forward(const Hparams& hparams, const Weights& weights, int n_threads)
    : hparams_(hparams),
      weights_(weights),
      team_(n_threads),
      product_(n_threads),
      experts_(hparams, n_threads),
      delta_net_(hparams),
      work_(n_threads) {
  ggml_threadpool_params params = ggml_threadpool_params_default(/*n_threads=*/1);
  for (int i = 0; i < n_threads; ++i) threadpools_.push_back(ggml_threadpool_new(&params));
}

Forward::~Forward() {
  for (ggml_threadpool* pool : threadpools_) ggml_threadpool_free(pool);
}

Result<TransformerGraph*> Forward::graph_for(const ForwardRows& rows) {
  const int n_rows = static_cast<int>(rows.tokens.size());
  const int n_logit_rows = static_cast<int>(rows.logit_rows.size());
  const auto fits = [&](const auto& g) {
    return g->n_rows() == n_rows && g->n_logit_rows() == n_logit_rows && g->short_rope() == rows.short_rope &&
           g->has_states() == rows.wants_states;
  };
  const auto found = std::find_if(graphs_.begin(), graphs_.end(), fits);
  if (found != graphs_.end()) {
    std::rotate(graphs_.begin(), found, found + 1);
    return graphs_.front().get();
  }
  std::int64_t bytes = 0;
  for (const auto& g : graphs_) bytes += g->bytes();
  while (!graphs_.empty() && (graphs_.size() >= kMaxGraphs || bytes > kMaxIdleBytes)) {
    bytes -= graphs_.back()->bytes();
    graphs_.pop_back();
  }
  auto built = TransformerGraph::build(
      {hparams_, weights_, product_, experts_, delta_net_, call_, team_.size(), rows.short_rope}, n_rows,
      n_logit_rows, rows.wants_states);
  if (!built.ok()) return built.error();
  graphs_.insert(graphs_.begin(), std::move(built).value());
  return graphs_.front().get();
}

void Forward::set_states(const Step& step) {
  if (hparams_.n_recurrent() == 0) return;
  std::vector<DeltaSlice> slices;
  for (int i = 0; i < std::ssize(step.slices()); ++i) {
    slices.push_back(
        {step.first_row(i), step.slices()[i].n_tokens, step.state_before(i), step.state_after(i)});
  }
  delta_net_.set_slices(std::move(slices));
}

Status Forward::compute(const TransformerGraph& graph) {
  std::atomic<bool> failed{false};
  team_.run([&](const Team& team) {
    const int thread = team.index();
    ggml_cplan plan = ggml_graph_plan(graph.part(thread), /*n_threads=*/1, threadpools_[thread]);
    if (work_[thread].size() < plan.work_size) work_[thread].resize(plan.work_size);
    plan.work_data = work_[thread].data();
    if (ggml_graph_compute(graph.part(thread), &plan) != GGML_STATUS_SUCCESS) failed = true;
  });
  if (failed) return shortage("out of memory while computing a step");
  return {};
}

Status Forward::run(Step& step, AttentionBackend& backend, const ForwardRows& rows,
                    MatrixView<float> logits) {
  const int n_rows = static_cast<int>(rows.tokens.size());
  const int n_logit_rows = static_cast<int>(rows.logit_rows.size());
  KVANT_CHECK(n_rows > 0 && rows.positions.size() == rows.tokens.size(), "tokens without positions");
  const int n_cols = rows.wants_states ? hparams_.n_embd : hparams_.n_vocab;
  KVANT_CHECK(logits.rows == n_logit_rows && (n_logit_rows == 0 || logits.cols == n_cols),
              "logits of another shape");
  auto graph = graph_for(rows);
  if (!graph.ok()) return graph.error();
  TransformerGraph& g = **graph;
  g.set_rows(hparams_, rows);
  set_states(step);
  const LayerAttention attention = [&](int layer, const LayerRows& of_layer, Team& team) {
    backend.run_layer(step, layer, of_layer, team);
  };
  call_.attention = &attention;
  KVANT_RETURN_IF_ERROR(compute(g));
  for (int r = 0; r < n_logit_rows; ++r) {
    std::copy_n(g.outputs() + static_cast<std::size_t>(r) * n_cols, n_cols, logits.row(r));
  }
  return {};
}

}  // namespace kvant
