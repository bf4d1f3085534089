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

// A graph transforms by matrices; what is left to the library is as the model made it, before and after.
void ObservedRows::read_inputs(const DeviceGraph& graph, const Plan& plan, int layer,
                               const LayerTransforms& transforms, ShownRows shown) {
  n_rows_ = graph.shape().n_rows;
  for (std::vector<float>* values : {&q_, &k_, &v_, &out_}) values->clear();
  if (shown < ShownRows::queries) return;
  graph.read_queries(q_);
  const auto inverse = [](const Transform& t, MatrixView<float> x) { t.inverse(x); };
  if (transforms.q.matrix != nullptr) {
    for_each_head_transform(plan, layer, Side::key, view(q_),
                            [](const Transform& t, MatrixView<float> q) { t.inverse_query(q); });
  }
  if (shown < ShownRows::inputs) return;
  graph.read_keys_and_values(k_, v_);
  if (transforms.k.matrix != nullptr) for_each_head_transform(plan, layer, Side::key, view(k_), inverse);
  if (transforms.v.matrix != nullptr) for_each_head_transform(plan, layer, Side::value, view(v_), inverse);
}

void ObservedRows::read_outputs(const DeviceGraph& graph, const Plan& plan, int layer,
                                const LayerTransforms& transforms, ShownRows shown) {
  if (shown < ShownRows::outputs) return;
  graph.read_attended(out_);
  if (transforms.out.matrix == nullptr) return;
  for_each_head_transform(plan, layer, Side::value, view(out_),
                          [](const Transform& t, MatrixView<float> x) { t.inverse(x); });
}

}  // namespace kvant
