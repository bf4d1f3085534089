#include "model/layer_tensors.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvant {

ggml_tensor* turn_heads(ggml_context* context, decltype(&ggml_rope_ext) operation, const Hparams& hparams,
                        const Weights& weights, int layer, ggml_tensor* positions, bool short_rope,
                        ggml_tensor* x) {
  const bool slides = hparams.sliding_window[layer] > 0;
  const Rope& r = slides ? hparams.sliding_rope : hparams.rope;
  const bool has_factors = !slides || !hparams.architecture->windows.rope_without_factors;
  ggml_tensor* factors = has_factors ? weights.rope_factors(short_rope) : nullptr;
  const int mode = hparams.rope_neox ? GGML_ROPE_TYPE_NEOX : GGML_ROPE_TYPE_NORMAL;
  return operation(context, x, positions, factors, slides ? hparams.sliding_n_rot : hparams.n_rot, mode,
                   r.original_context, r.base, r.frequency_scale, r.extension, r.magnitude, r.beta_fast,
                   r.beta_slow);
}

ggml_tensor* LayerTensors::norm(ggml_tensor* x, ggml_tensor* weight, ggml_tensor* bias) {
  const float epsilon = h_.norm_epsilon;
  x = h_.architecture->layer_norm && weight != nullptr ? ggml_norm(c_, x, epsilon)
                                                       : ggml_rms_norm(c_, x, epsilon);
  if (weight == nullptr) return x;
  x = ggml_mul(c_, x, weight);
  return bias == nullptr ? x : ggml_add(c_, x, bias);
}

ggml_tensor* LayerTensors::multiply(ggml_tensor* weight, ggml_tensor* bias, ggml_tensor* x) {
  ggml_tensor* y = ggml_mul_mat(c_, expanded(weight), x);
  return bias == nullptr ? y : ggml_add(c_, y, bias);
}

ggml_tensor* LayerTensors::rope(ggml_tensor* x) {
  return turned(ggml_rope_ext, x);
}

ggml_tensor* LayerTensors::activated(ggml_tensor* gate, ggml_tensor* up) {
  const NetworkUnit& unit = h_.architecture->unit;
  const Activation kind = unit.activation;
  if (unit.ungated) return kind == Activation::gelu ? ggml_gelu(c_, up) : ggml_sqr(c_, ggml_relu(c_, up));
  constexpr float kSlope = 1.702F, kLimit = 7;  // gpt-oss's constants
  if (kind == Activation::clipped_silu) return ggml_swiglu_oai(c_, gate, up, kSlope, kLimit);
  const ggml_glu_op op = kind == Activation::gelu ? GGML_GLU_OP_GEGLU : GGML_GLU_OP_SWIGLU;
  return gate == nullptr ? ggml_glu(c_, up, op, /*swapped=*/false) : ggml_glu_split(c_, gate, up, op);
}

ggml_tensor* LayerTensors::sum(ggml_tensor* a, ggml_tensor* b) {
  return ggml_add(c_, a, b);
}

ggml_tensor* LayerTensors::scaled(ggml_tensor* x, float by) {
  return by == 1 ? x : ggml_scale(c_, x, by);
}

void LayerTensors::project_heads(ggml_tensor* h) {
  const LayerWeights& w = weights();
  const int n_kv_heads = h_.kv_heads(layer_);
  k_ = v_ = nullptr;
  if (w.qkv != nullptr) {
    ggml_tensor* all = multiply(w.qkv, w.qkv_bias, h);
    q_ = heads(all, h_.n_heads);
    k_ = heads(all, n_kv_heads, h_.n_heads);
    v_ = heads(all, n_kv_heads, h_.n_heads + n_kv_heads);
    return;
  }
  ggml_tensor* projected = multiply(w.q, w.q_bias, h);
  q_ = h_.gated_heads ? separate_from_gates(projected) : heads(projected, h_.n_heads);
  if (!h_.has_kv(layer_)) return;
  k_ = heads(multiply(w.k, w.k_bias, h), n_kv_heads);
  v_ = heads(multiply(w.v, w.v_bias, h), n_kv_heads);
}

ggml_tensor* LayerTensors::network(const NetworkWeights& w, ggml_tensor* h) {
  ggml_tensor* up = multiply(w.up, w.up_bias, h);
  ggml_tensor* gate = w.gate == nullptr ? nullptr : multiply(w.gate, w.gate_bias, h);
  return multiply(w.down, w.down_bias, activated(gate, up));
}

ggml_tensor*& LayerTensors::rows(RowSet which) {
  ggml_tensor** const all[] = {&x_, &normed_, &y_, &dense_};
  return *all[static_cast<int>(which)];
}

ggml_tensor* LayerTensors::expanded(ggml_tensor* weight) {
  if (inputs_.numbers == nullptr || weight == nullptr || weight->type == GGML_TYPE_F32) return weight;
  const std::int64_t n_rows = weight->ne[1] * weight->ne[2];
  ggml_tensor* rows = ggml_reshape_2d(c_, weight, weight->ne[0], n_rows);
  rows = ggml_get_rows(c_, rows, ggml_view_1d(c_, inputs_.numbers, n_rows, 0));
  return ggml_reshape_3d(c_, rows, weight->ne[0], weight->ne[1], weight->ne[2]);
}

ggml_tensor* LayerTensors::heads(ggml_tensor* y, int n_heads, int first) {
  const std::size_t head_bytes = h_.dim(layer_) * sizeof(float);
  return ggml_view_3d(c_, y, h_.dim(layer_), n_heads, y->ne[1], head_bytes, y->nb[1], first * head_bytes);
}

ggml_tensor* LayerTensors::as_rows(ggml_tensor* x) {
  return ggml_cont_2d(c_, x, x->ne[0] * x->ne[1], x->ne[2]);
}

ggml_tensor* LayerTensors::as_heads(ggml_tensor* x, int n_heads) {
  return heads(x, n_heads);
}

ggml_tensor* LayerTensors::separate_from_gates(ggml_tensor* both) {
  const std::size_t head_bytes = h_.head_dim * sizeof(float);
  return ggml_view_3d(c_, both, h_.head_dim, h_.n_heads, both->ne[1], 2 * head_bytes, both->nb[1],
                      /*offset=*/0);
}

ggml_tensor* LayerTensors::normed_heads(ggml_tensor* x, ggml_tensor* weight, bool of_rows) {
  if (x == nullptr || weight == nullptr) return x;
  if (!of_rows) return norm(x, weight);
  const auto n_heads = static_cast<int>(x->ne[1]);
  return as_heads(norm(as_rows(x), weight), n_heads);
}

void LayerTensors::run(const Norm& step) {
  ggml_tensor* weight = weights().*step.weights.weight;
  if (weight == nullptr) return;
  ggml_tensor* bias = step.weights.bias == nullptr ? nullptr : weights().*step.weights.bias;
  rows(step.to) = norm(rows(step.from), weight, bias);
}

void LayerTensors::run(const ProjectHeads& step) {
  project_heads(rows(step.from));
}

void LayerTensors::run(const NormHeads& step) {
  q_ = normed_heads(q_, weights().q_norm, step.of_rows);
  k_ = normed_heads(k_, weights().k_norm, step.of_rows);
}

void LayerTensors::run(const TurnHeads&) {
  if (!h_.rotated[layer_]) return;
  q_ = rope(q_);
  if (k_ != nullptr) k_ = rope(k_);
}

void LayerTensors::run(const NormValues&) {
  if (v_ != nullptr) v_ = norm(v_, /*weight=*/nullptr);
}

void LayerTensors::run(const ProjectBack&) {
  y_ = multiply(weights().attn_out, weights().attn_out_bias, attended_);
}

void LayerTensors::run(const Add& step) {
  ggml_tensor*& to = rows(step.to);
  ggml_tensor* from = rows(step.from);
  if (step.to == RowSet::x) from = scaled(from, h_.residual_scale);
  to = step.to == RowSet::x ? sum(from, to) : sum(to, from);
}

void LayerTensors::run(const RunNetwork& step) {
  rows(step.to) = network(weights().ffn, rows(step.from));
}

void LayerTensors::run(const RouteRows& step) {
  routed_ = multiply(weights().router, weights().router_bias, rows(step.from));
}

// The steps agree with choose_experts() in expert_routing.cc.
void LayerTensors::run(const RunExperts& step) {
  const LayerWeights& w = weights();
  ggml_tensor* h = rows(step.from);
  const Experts& rules = h_.experts;
  const std::int64_t n_rows = h->ne[1];
  ggml_tensor* logits = routed_;
  ggml_tensor* probabilities = logits;
  if (rules.gating == Gating::softmax) probabilities = ggml_soft_max(c_, logits);
  if (rules.gating == Gating::sigmoid) probabilities = ggml_sigmoid(c_, logits);
  ggml_tensor* scores = w.choice_bias == nullptr ? probabilities : ggml_add(c_, probabilities, w.choice_bias);
  if (rules.n_groups > 1) scores = of_best_groups(scores);
  ggml_tensor* ids = ggml_argsort_top_k(c_, scores, rules.n_used);  // [n_used, n_rows]
  const auto of_chosen = [&](ggml_tensor* of_all) {                 // [n, n_rows] -> [n_used, n_rows]
    ggml_tensor* chosen = ggml_get_rows(c_, ggml_reshape_3d(c_, of_all, 1, rules.n, n_rows), ids);
    return ggml_reshape_2d(c_, chosen, rules.n_used, n_rows);
  };
  ggml_tensor* shares = of_chosen(probabilities);
  if (rules.gating == Gating::softmax_of_chosen) shares = ggml_soft_max(c_, shares);
  if (rules.normalizes) shares = ggml_div(c_, shares, ggml_sum_rows(c_, shares));
  if (rules.scale != 1) shares = ggml_scale(c_, shares, rules.scale);
  if (w.device_expert_scales != nullptr) {
    ggml_tensor* scales = ggml_repeat_4d(c_, w.device_expert_scales, rules.n, n_rows, 1, 1);
    shares = ggml_mul(c_, shares, of_chosen(scales));
  }
  shares = ggml_reshape_3d(c_, shares, 1, rules.n_used, n_rows);

  const auto product = [&](ggml_tensor* weight, ggml_tensor* bias, ggml_tensor* x) {
    ggml_tensor* y = ggml_mul_mat_id(c_, expanded(weight), x, ids);
    return bias == nullptr ? y : ggml_add_id(c_, y, bias, ids);
  };
  ggml_tensor* x = ggml_reshape_3d(c_, h, h->ne[0], 1, n_rows);
  const NetworkWeights& e = w.experts;
  ggml_tensor* up = product(e.up, e.up_bias, x);
  ggml_tensor* hidden = activated(e.gate == nullptr ? nullptr : product(e.gate, e.gate_bias, x), up);
  ggml_tensor* by_expert =
      ggml_mul(c_, product(e.down, e.down_bias, hidden), shares);  // [n_embd, n_used, n_rows]
  ggml_tensor* y = w.shared.up == nullptr ? nullptr : network(w.shared, h);
  if (w.shared_gate != nullptr) {
    ggml_tensor* gate = ggml_reshape_2d(c_, w.shared_gate, w.shared_gate->ne[0], 1);
    y = ggml_mul(c_, y, ggml_sigmoid(c_, ggml_mul_mat(c_, gate, h)));
  }
  for (int i = 0; i < rules.n_used; ++i) {
    ggml_tensor* one = ggml_view_2d(c_, by_expert, h->ne[0], n_rows, by_expert->nb[2], i * by_expert->nb[1]);
    y = y == nullptr ? ggml_cont(c_, one) : ggml_add(c_, y, one);
  }
  y_ = y;
}

void LayerTensors::run(const ScaleByWidth& step) {
  rows(step.rows) = scaled(rows(step.rows), 1 / std::sqrt(static_cast<float>(h_.n_embd)));
}

void LayerTensors::run(const ScaleLayer&) {
  x_ = scaled(x_, weights().scale);
}

// Returns scores [n, n_rows] of experts, with -infinity outside of each row's best groups. A group's score is
// the sum of its two best experts' scores.
ggml_tensor* LayerTensors::of_best_groups(ggml_tensor* scores) {
  const Experts& rules = h_.experts;
  const std::int64_t size = rules.n / rules.n_groups, n_rows = scores->ne[1];
  const std::int64_t n_best = std::min<std::int64_t>(2, size);
  ggml_tensor* groups = ggml_reshape_3d(c_, scores, size, rules.n_groups, n_rows);
  ggml_tensor* best = ggml_argsort_top_k(c_, groups, static_cast<int>(n_best));  // [n_best, n_groups, n_rows]
  best = ggml_get_rows(c_, ggml_reshape_4d(c_, groups, 1, size, rules.n_groups, n_rows), best);
  best = ggml_sum_rows(c_, ggml_reshape_3d(c_, best, n_best, rules.n_groups, n_rows));
  best = ggml_reshape_2d(c_, best, rules.n_groups, n_rows);
  ggml_tensor* chosen = ggml_argsort_top_k(c_, best, rules.n_groups_used);  // [n_groups_used, n_rows]
  ggml_tensor* none = ggml_fill(c_, groups, -std::numeric_limits<float>::infinity());
  groups = ggml_set_rows(c_, none, ggml_get_rows(c_, groups, chosen), chosen);
  return ggml_reshape_2d(c_, groups, rules.n, n_rows);
}

}  // namespace kvant
