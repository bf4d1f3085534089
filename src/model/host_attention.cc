#include "model/host_attention.h"

namespace kvant {

Status HostAttention::run(Step& step, AttentionBackend& backend, DeviceGraph& graph) {
  if (!team_) team_.emplace(n_threads_);
  for (int layer = 0; layer < hparams_.n_layers; ++layer) {
    KVANT_RETURN_IF_ERROR(graph.start(layer));
    run_layer(step, backend, layer, graph);
  }
  return graph.start(hparams_.n_layers);
}

void HostAttention::run_layer(Step& step, AttentionBackend& backend, int layer, DeviceGraph& graph) {
  const int n_rows = graph.shape().n_rows, n_q = hparams_.n_q(layer);
  const int n_kv = hparams_.has_kv(layer) ? hparams_.n_kv(layer) : 0;
  const auto resize = [&](std::vector<float>& rows, int n_columns) {
    rows.resize(static_cast<std::size_t>(n_rows) * n_columns);
  };
  resize(q_, n_q);
  resize(k_, n_kv);
  resize(v_, n_kv);
  resize(out_, n_q);
  graph.read_inputs(q_, k_, v_);
  LayerRows rows;
  rows.q = {q_.data(), n_rows, n_q};
  if (n_kv > 0) {
    rows.k = {k_.data(), n_rows, n_kv};
    rows.v = {v_.data(), n_rows, n_kv};
  }
  rows.out = {out_.data(), n_rows, n_q};
  team_->run([&](Team& team) { backend.run_layer(step, hparams_.place[layer], rows, team); });
  graph.write_attended(out_);
}

}  // namespace kvant
