#include "calibrate/device_layer_graph.h"

#include <ggml.h>

#include <cstddef>

namespace kvant {
namespace {

// A weight in F32, with the views of its parts that others hold apart.
struct Linear {
  ggml_tensor* weight;  // [n_in, n_out]
  ggml_tensor* bias;    // [n_out], or null
};

class Builder {
 public:
  Builder(ggml_context* context, const Hparams& hparams, const Weights& weights, int layer,
          const LayerInputs& inputs)
      : c_(context),
        h_(hparams),
        all_(weights),
        w_(weights.layer(layer)),
        layer_(layer),
        in_(inputs),
        n_(inputs.x->ne[1]),
        group_(h_.n_heads / h_.n_kv_heads),
        mask_(h_.sliding_window[layer] > 0 ? inputs.sliding_mask : inputs.mask) {}

  void forward(LayerOutputs& out) {
    ggml_tensor* middle = attend();
    out.x = ggml_add(c_, middle, feed_forward(middle));
    add(out.x);
  }

  void backward(LayerOutputs& out) {
    ggml_tensor* middle = attend();
    ggml_tensor* gradient = ggml_add(c_, in_.gradient, feed_forward_back(middle));
    out.gradient = ggml_add(c_, gradient, attend_back(gradient, out));
    for (ggml_tensor* result : {out.gradient, out.k, out.v, out.q, out.attended_gradient, out.moments})
      add(result);
  }

  ggml_cgraph* graph() const { return graph_; }

 private:
  void add(ggml_tensor* result) {
    ggml_set_output(result);
    ggml_build_forward_expand(graph_, result);
  }

  // --- weights ---

  ggml_tensor* expanded(ggml_tensor* weight) {
    if (weight == nullptr || weight->type == GGML_TYPE_F32) return weight;
    return ggml_get_rows(c_, weight, ggml_view_1d(c_, in_.numbers, weight->ne[1], 0));
  }
  Linear linear(ggml_tensor* weight, ggml_tensor* bias) { return {expanded(weight), expanded(bias)}; }
  // Outputs [first, first + n).
  Linear part(const Linear& of, std::int64_t first, std::int64_t n) {
    ggml_tensor* w = of.weight;
    return {ggml_view_2d(c_, w, w->ne[0], n, w->nb[1], first * w->nb[1]),
            of.bias == nullptr ? nullptr : ggml_view_1d(c_, of.bias, n, first * sizeof(float))};
  }

  // --- maps of rows, and their transposed derivatives ---

  ggml_tensor* multiply(const Linear& by, ggml_tensor* x) {
    ggml_tensor* y = ggml_mul_mat(c_, by.weight, x);
    return by.bias == nullptr ? y : ggml_add(c_, y, by.bias);
  }
  ggml_tensor* multiply_back(const Linear& by, ggml_tensor* gradient) {
    return ggml_out_prod(c_, by.weight, ggml_transpose(c_, gradient));
  }
  ggml_tensor* norm(ggml_tensor* x, ggml_tensor* weight) {
    return ggml_mul(c_, ggml_rms_norm(c_, x, h_.norm_epsilon), weight);
  }
  ggml_tensor* norm_back(ggml_tensor* gradient, ggml_tensor* x, ggml_tensor* weight) {
    return ggml_rms_norm_back(c_, ggml_mul(c_, gradient, weight), x, h_.norm_epsilon);
  }
  // Of a block's output, where there is one.
  ggml_tensor* post_norm(ggml_tensor* y, ggml_tensor* weight) {
    return weight == nullptr ? y : norm(y, expanded(weight));
  }

  template <class Turn>
  ggml_tensor* turned(const Turn& turn, ggml_tensor* x) {
    const Rope& r = h_.sliding_window[layer_] > 0 ? h_.sliding_rope : h_.rope;
    const int mode = h_.rope_neox ? GGML_ROPE_TYPE_NEOX : GGML_ROPE_TYPE_NORMAL;
    return turn(c_, x, in_.positions, all_.rope_factors(), h_.n_rot, mode, r.original_context, r.base,
                r.frequency_scale, r.extension, r.magnitude, r.beta_fast, r.beta_slow);
  }

  // --- attention ---

  // [head_dim, heads, n_rows], where heads of a token lie side by side, to [head_dim, n_rows, heads].
  ggml_tensor* by_head(ggml_tensor* x) { return ggml_cont(c_, ggml_permute(c_, x, 0, 2, 1, 3)); }
  ggml_tensor* by_token(ggml_tensor* x) { return by_head(x); }
  // [a, b, heads] of query heads to [a, b * group, n_kv_heads]: those of a KV head's group, one after
  // another.
  ggml_tensor* by_group(ggml_tensor* x) {
    return ggml_reshape_3d(c_, x, x->ne[0], x->ne[1] * group_, h_.n_kv_heads);
  }
  ggml_tensor* ungrouped(ggml_tensor* x) { return ggml_reshape_3d(c_, x, x->ne[0], n_, h_.n_heads); }
  // [head_dim, n_rows, heads] to [n_rows, head_dim, heads].
  ggml_tensor* transposed(ggml_tensor* x) { return ggml_cont(c_, ggml_transpose(c_, x)); }

  void take_projections() {
    const std::int64_t n_q = std::int64_t{h_.n_heads} * h_.head_dim,
                       n_kv = std::int64_t{h_.n_kv_heads} * h_.head_dim;
    if (w_.qkv == nullptr) {
      to_q_ = linear(w_.q, w_.q_bias);
      to_k_ = linear(w_.k, w_.k_bias);
      to_v_ = linear(w_.v, w_.v_bias);
      return;
    }
    const Linear all = linear(w_.qkv, w_.qkv_bias);
    to_q_ = part(all, 0, n_q);
    to_k_ = part(all, n_q, n_kv);
    to_v_ = part(all, n_q + n_kv, n_kv);
  }

  ggml_tensor* heads(const Linear& by, ggml_tensor* x, int n) {
    return ggml_reshape_3d(c_, multiply(by, x), h_.head_dim, n, n_);
  }
  ggml_tensor* normed_and_turned(ggml_tensor* plain, ggml_tensor* weight) {
    return by_head(turned(ggml_rope_ext, weight == nullptr ? plain : norm(plain, expanded(weight))));
  }

  // The residual stream behind the attention.
  ggml_tensor* attend() {
    attn_norm_ = expanded(w_.attn_norm);
    take_projections();
    ggml_tensor* x = norm(in_.x, attn_norm_);
    plain_q_ = heads(to_q_, x, h_.n_heads);
    plain_k_ = heads(to_k_, x, h_.n_kv_heads);
    q_ = normed_and_turned(plain_q_, w_.q_norm);
    k_ = normed_and_turned(plain_k_, w_.k_norm);
    v_ = by_head(heads(to_v_, x, h_.n_kv_heads));
    weigh();
    ggml_tensor* attended = ggml_mul_mat(c_, transposed(v_), by_group(weights_));
    attended = ggml_reshape_2d(c_, by_token(ungrouped(attended)), std::int64_t{h_.n_heads} * h_.head_dim, n_);
    to_out_ = linear(w_.attn_out, w_.attn_out_bias);
    attn_out_ = multiply(to_out_, attended);
    return ggml_add(c_, in_.x, post_norm(attn_out_, w_.attn_post_norm));
  }

  // weights_ [n_rows of keys, n_rows of queries, n_heads]; with a soft cap, slopes_: d capped / d score.
  void weigh() {
    ggml_tensor* scores = ungrouped(ggml_mul_mat(c_, k_, by_group(q_)));
    if (h_.score_softcap == 0) {
      weights_ = ggml_soft_max_ext(c_, scores, mask_, h_.softmax_scale, /*max_bias=*/0);
      return;
    }
    ggml_tensor* t = ggml_tanh(c_, ggml_scale(c_, scores, h_.softmax_scale / h_.score_softcap));
    slopes_ = ggml_scale_bias(c_, ggml_sqr(c_, t), -1, 1);
    weights_ = ggml_soft_max_ext(c_, ggml_scale(c_, t, h_.score_softcap), mask_, /*scale=*/1, /*max_bias=*/0);
  }

  // Heads [head_dim, n_rows, heads] of q or k to what they were projected to, [columns, n_rows].
  ggml_tensor* turned_back(ggml_tensor* gradient, ggml_tensor* plain, ggml_tensor* weight) {
    ggml_tensor* back = turned(ggml_rope_ext_back, by_token(gradient));
    if (weight != nullptr) back = norm_back(back, plain, expanded(weight));
    return rows(back);
  }
  ggml_tensor* rows(ggml_tensor* x) { return ggml_reshape_2d(c_, x, x->ne[0] * x->ne[1], x->ne[2]); }

  // What the gradient behind the attention adds to that by x, for which attend() has been called.
  ggml_tensor* attend_back(ggml_tensor* gradient, LayerOutputs& out) {
    ggml_tensor* dy = gradient;
    if (w_.attn_post_norm != nullptr) dy = norm_back(dy, attn_out_, expanded(w_.attn_post_norm));
    dy = multiply_back(to_out_, dy);
    out.attended_gradient = by_head(ggml_reshape_3d(c_, dy, h_.head_dim, h_.n_heads, n_));
    dy = by_group(out.attended_gradient);
    ggml_tensor* weights = by_group(weights_);
    ggml_tensor* q = by_group(q_);

    ggml_tensor* by_scores = ungrouped(ggml_mul_mat(c_, v_, dy));
    by_scores = ggml_soft_max_ext_back(c_, by_scores, weights_, h_.softmax_scale, /*max_bias=*/0);
    if (slopes_ != nullptr) by_scores = ggml_mul(c_, by_scores, slopes_);
    ggml_tensor* sealed_scores = by_group(ggml_mul(c_, by_scores, in_.sealed));
    by_scores = by_group(by_scores);

    out.k = k_;
    out.v = v_;
    out.q = q_;
    ggml_tensor* unturned = by_head(turned(ggml_rope_ext_back, by_token(q_)));
    out.moments = moments(by_group(unturned), sealed_scores);

    ggml_tensor* dq = ungrouped(ggml_mul_mat(c_, transposed(k_), by_scores));
    ggml_tensor* dk = ggml_out_prod(c_, q, by_scores);
    ggml_tensor* dv = ggml_out_prod(c_, dy, weights);
    ggml_tensor* dx = multiply_back(to_q_, turned_back(dq, plain_q_, w_.q_norm));
    dx = ggml_add(c_, dx, multiply_back(to_k_, turned_back(dk, plain_k_, w_.k_norm)));
    dx = ggml_add(c_, dx, multiply_back(to_v_, rows(by_token(dv))));
    return norm_back(dx, in_.x, attn_norm_);
  }

  // Of queries q [head_dim, n_rows * group, n_kv_heads], each times the length of its derivative by scores.
  ggml_tensor* moments(ggml_tensor* q, ggml_tensor* by_scores) {
    const std::int64_t n_queries = n_ * group_;
    ggml_tensor* squares = ggml_reshape_2d(c_, ggml_sqr(c_, by_scores), n_, n_queries * h_.n_kv_heads);
    ggml_tensor* lengths = ggml_sqrt(c_, ggml_mul_mat(c_, squares, in_.behind_sink));
    lengths = ggml_reshape_3d(c_, lengths, 1, n_queries, h_.n_kv_heads);
    return ggml_out_prod(c_, ggml_mul(c_, q, lengths), q);
  }

  // --- the feed-forward network ---

  struct Activated {
    ggml_tensor *value, *slope;
  };
  Activated silu(ggml_tensor* x) {
    ggml_tensor* sigma = ggml_sigmoid(c_, x);
    ggml_tensor* value = ggml_mul(c_, x, sigma);
    return {value, ggml_add(c_, sigma, ggml_sub(c_, value, ggml_mul(c_, value, sigma)))};
  }
  // ggml's own rounds to half precision on the CPU.
  Activated gelu(ggml_tensor* x) {
    constexpr float kRoot2OverPi = 0.79788456F, kCubic = 0.044715F;
    ggml_tensor* squared = ggml_sqr(c_, x);
    ggml_tensor* inside = ggml_mul(c_, x, ggml_scale_bias(c_, squared, kRoot2OverPi * kCubic, kRoot2OverPi));
    ggml_tensor* t = ggml_tanh(c_, inside);
    ggml_tensor* share = ggml_scale_bias(c_, t, 0.5F, 0.5F);
    ggml_tensor* slope = ggml_scale_bias(c_, ggml_sqr(c_, t), -0.5F, 0.5F);  // of the share, by `inside`
    slope = ggml_mul(c_, slope, ggml_scale_bias(c_, squared, 3 * kRoot2OverPi * kCubic, kRoot2OverPi));
    return {ggml_mul(c_, x, share), ggml_add(c_, share, ggml_mul(c_, x, slope))};
  }

  ggml_tensor* feed_forward(ggml_tensor* x) {
    ffn_norm_ = expanded(w_.ffn_norm);
    to_up_ = linear(w_.ffn.up, w_.ffn.up_bias);
    if (w_.ffn.gate != nullptr) {
      to_gate_ = linear(w_.ffn.gate, w_.ffn.gate_bias);
    } else {  // one weight holds both
      to_gate_ = part(to_up_, 0, h_.n_ff);
      to_up_ = part(to_up_, h_.n_ff, h_.n_ff);
    }
    ggml_tensor* normed = norm(x, ffn_norm_);
    gate_ = multiply(to_gate_, normed);
    activated_ = h_.architecture->activation == Activation::gelu ? gelu(gate_) : silu(gate_);
    up_ = multiply(to_up_, normed);
    to_down_ = linear(w_.ffn.down, w_.ffn.down_bias);
    down_ = multiply(to_down_, ggml_mul(c_, activated_.value, up_));
    return post_norm(down_, w_.ffn_post_norm);
  }

  // What the gradient behind the layer adds to that by x.
  ggml_tensor* feed_forward_back(ggml_tensor* x) {
    feed_forward(x);
    ggml_tensor* dy = in_.gradient;
    if (w_.ffn_post_norm != nullptr) dy = norm_back(dy, down_, expanded(w_.ffn_post_norm));
    dy = multiply_back(to_down_, dy);
    ggml_tensor* by_gate = ggml_mul(c_, ggml_mul(c_, dy, up_), activated_.slope);
    ggml_tensor* by_up = ggml_mul(c_, dy, activated_.value);
    ggml_tensor* dx = ggml_add(c_, multiply_back(to_gate_, by_gate), multiply_back(to_up_, by_up));
    return norm_back(dx, x, ffn_norm_);
  }

  ggml_context* c_;
  const Hparams& h_;
  const Weights& all_;
  const LayerWeights& w_;
  int layer_;
  const LayerInputs& in_;
  std::int64_t n_;  // rows
  int group_;       // query heads of a KV head
  ggml_tensor* mask_;
  ggml_cgraph* graph_ = ggml_new_graph_custom(c_, kLayerGraphTensors, /*grads=*/false);

  Linear to_q_{}, to_k_{}, to_v_{}, to_out_{}, to_gate_{}, to_up_{}, to_down_{};
  ggml_tensor *attn_norm_ = nullptr, *ffn_norm_ = nullptr;
  ggml_tensor *plain_q_ = nullptr, *plain_k_ = nullptr;     // [head_dim, heads, n_rows]
  ggml_tensor *q_ = nullptr, *k_ = nullptr, *v_ = nullptr;  // [head_dim, n_rows, heads]
  ggml_tensor *weights_ = nullptr, *slopes_ = nullptr;      // [n_rows, n_rows, n_heads]
  ggml_tensor *attn_out_ = nullptr, *down_ = nullptr;       // [n_embd, n_rows]: before their norms
  ggml_tensor *gate_ = nullptr, *up_ = nullptr;             // [n_ff, n_rows]
  Activated activated_{};
};

}  // namespace

ggml_cgraph* layer_graph(ggml_context* context, const Hparams& hparams, const Weights& weights, int layer,
                         const LayerInputs& inputs, LayerOutputs& outputs) {
  Builder builder(context, hparams, weights, layer, inputs);
  builder.forward(outputs);
  return builder.graph();
}

ggml_cgraph* layer_gradient_graph(ggml_context* context, const Hparams& hparams, const Weights& weights,
                                  int layer, const LayerInputs& inputs, LayerOutputs& outputs) {
  Builder builder(context, hparams, weights, layer, inputs);
  builder.backward(outputs);
  return builder.graph();
}

}  // namespace kvant
