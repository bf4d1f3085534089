#include "calibrate/rope_table.h"

#include <ggml-cpu.h>
#include <ggml.h>

#include <memory>

#include "base/check.h"
#include "calibrate/f32_layer.h"
#include "model/hparams.h"
#include "model/weights.h"

namespace kvant {

// The rotations come from ggml itself, which is applied to unit vectors of each pair's first channel.
RopeTable::RopeTable(const ModelParts& model, int layer, int n_rows, int n_threads) {
  const Hparams& h = model.hparams;
  const bool neox = h.rope_neox;
  n_pairs_ = h.n_rot / 2;
  first_stride_ = neox ? 1 : 2;
  second_offset_ = neox ? n_pairs_ : 1;
  const std::size_t bytes = (2 * sizeof(float) * h.n_rot + 2 * sizeof(std::int32_t)) * n_rows + (1 << 20);
  const std::unique_ptr<ggml_context, void (*)(ggml_context*)> context(
      ggml_init({bytes, nullptr, /*no_alloc=*/false}), ggml_free);
  KVANT_CHECK(context != nullptr, "no memory for RoPE's turns");
  ggml_context* c = context.get();
  ggml_tensor* x = ggml_new_tensor_3d(c, GGML_TYPE_F32, h.n_rot, 1, n_rows);
  ggml_tensor* positions = ggml_new_tensor_1d(c, GGML_TYPE_I32, n_rows);
  ggml_tensor* factors = nullptr;
  const std::vector<float> stored = f32_values(model, model.weights.rope_factors(), n_threads);
  if (!stored.empty()) {
    factors = ggml_new_tensor_1d(c, GGML_TYPE_F32, static_cast<std::int64_t>(stored.size()));
    std::copy(stored.begin(), stored.end(), static_cast<float*>(factors->data));
  }
  auto* values = static_cast<float*>(x->data);
  std::fill_n(values, static_cast<std::size_t>(h.n_rot) * n_rows, 0.0F);
  for (int row = 0; row < n_rows; ++row) {
    static_cast<std::int32_t*>(positions->data)[row] = row;
    for (int i = 0; i < n_pairs_; ++i) values[row * h.n_rot + i * first_stride_] = 1;
  }
  const Rope& r = h.sliding_window[layer] > 0 ? h.sliding_rope : h.rope;
  ggml_tensor* turned = ggml_rope_ext(
      c, x, positions, factors, h.n_rot, neox ? GGML_ROPE_TYPE_NEOX : GGML_ROPE_TYPE_NORMAL,
      r.original_context, r.base, r.frequency_scale, r.extension, r.magnitude, r.beta_fast, r.beta_slow);
  ggml_cgraph* graph = ggml_new_graph(c);
  ggml_build_forward_expand(graph, turned);
  KVANT_CHECK(ggml_graph_compute_with_ctx(c, graph, 1) == GGML_STATUS_SUCCESS, "RoPE's turns");
  const auto* result = static_cast<const float*>(turned->data);
  for (int row = 0; row < n_rows; ++row) {
    for (int i = 0; i < n_pairs_; ++i) {
      cosines_.push_back(result[row * h.n_rot + i * first_stride_]);
      sines_.push_back(result[row * h.n_rot + i * first_stride_ + second_offset_]);
    }
  }
}

template <bool back>
void RopeTable::apply(int row, float* x) const {
  const float* cosines = cosines_.data() + static_cast<std::ptrdiff_t>(row) * n_pairs_;
  const float* sines = sines_.data() + static_cast<std::ptrdiff_t>(row) * n_pairs_;
  for (int i = 0; i < n_pairs_; ++i) {
    float& a = x[i * first_stride_];
    float& b = x[i * first_stride_ + second_offset_];
    const float c = cosines[i], s = back ? -sines[i] : sines[i];
    const float old = a;
    a = old * c - b * s;
    b = old * s + b * c;
  }
}

void RopeTable::turn(int row, float* x) const {
  apply<false>(row, x);
}
void RopeTable::turn_back(int row, float* gradient) const {
  apply<true>(row, gradient);
}

}  // namespace kvant
