#include "model/observed_rows.h"

#include "attention/head_transforms.h"

namespace kvant {

MatrixView<float> ObservedRows::view(std::vector<float>& values) const {
  if (values.empty()) return {};
  return {values.data(), n_rows_, static_cast<int>(values.size()) / n_rows_};
}

LayerRows ObservedRows::rows() {
  return {view(q_), view(k_), view(v_), view(out_)};
}

void ObservedRows::set_rows(int n) {
  n_rows_ = n;
  for (std::vector<float>* values : {&q_, &k_, &v_, &out_}) values->clear();
}

// Undoes the transform of the queries if the graph has applied one as a matrix. Transforms that the device's
// library applies have not touched these rows.
void ObservedRows::undo_query_transforms(const Plan& plan, int layer, const LayerTransforms& transforms) {
  if (transforms.q.matrix == nullptr) return;
  for_each_head_transform(plan, layer, Side::key, view(q_),
                          [](const Transform& t, MatrixView<float> q) { t.inverse_query(q); });
}

Status ObservedRows::keep_queries(const DeviceGraph& graph, const Plan& plan, int n) {
  const Geometry& g = plan.geometry;
  // If layers differ, `bytes` is an upper bound.
  const std::size_t bytes = sizeof(float) * graph.shape().n_rows * g.n_heads * g.head_dim;
  KVANT_RETURN_IF_ERROR(kept_.reserve(g.n_layers * bytes, "for what is looked at"));
  device_->copy(kept_.memory() + n * bytes, graph.q(), bytes);
  return {};
}

void ObservedRows::read_kept(const DeviceGraph& graph, const Plan& plan, int layer,
                             const LayerTransforms& transforms, int nth) {
  set_rows(graph.shape().n_rows);
  const Geometry& g = plan.geometry;
  q_.resize(std::size_t{1} * n_rows_ * g.n_q(layer));
  const std::size_t place = sizeof(float) * n_rows_ * g.n_heads * g.head_dim;
  device_->download(q_.data(), kept_.memory() + nth * place, sizeof(float) * q_.size());
  undo_query_transforms(plan, layer, transforms);
}

void ObservedRows::read_inputs(const DeviceGraph& graph, const Plan& plan, int layer,
                               const LayerTransforms& transforms) {
  const Geometry& g = plan.geometry;
  set_rows(graph.shape().n_rows);
  q_.resize(std::size_t{1} * n_rows_ * g.n_q(layer));
  k_.resize(std::size_t{1} * n_rows_ * g.n_kv(layer));
  v_.resize(k_.size());
  graph.read_inputs(q_, k_, v_);
  undo_query_transforms(plan, layer, transforms);
  const auto inverse = [](const Transform& t, MatrixView<float> x) { t.inverse(x); };
  if (transforms.k.matrix != nullptr) for_each_head_transform(plan, layer, Side::key, view(k_), inverse);
  if (transforms.v.matrix != nullptr) for_each_head_transform(plan, layer, Side::value, view(v_), inverse);
}

void ObservedRows::read_outputs(const DeviceGraph& graph, const Plan& plan, int layer,
                                const LayerTransforms& transforms, ShownRows shown) {
  if (shown < ShownRows::outputs) return;
  out_.resize(q_.size());
  graph.read_attended(out_);
  if (transforms.out.matrix == nullptr) return;
  for_each_head_transform(plan, layer, Side::value, view(out_),
                          [](const Transform& t, MatrixView<float> x) { t.inverse(x); });
}

}  // namespace kvant
