#include "calibrate/device_layer_graph.h"

#include <ggml.h>

#include <cstddef>
#include <functional>
#include <map>

#include "base/check.h"
#include "model/layer_tensors.h"

namespace kvant {
namespace {

// Linear is a weight in F32 with its bias, or a range of the outputs of such a weight.
struct Linear {
  ggml_tensor* weight;  // [n_in, n_out]
  ggml_tensor* bias;    // [n_out]; may be null
};

// Builder adds a layer's steps to a graph. For each operation, it notes how a gradient passes from the result
// to the inputs. The backward pass runs these notes in reverse order.
class Builder final : LayerTensors {
 public:
  Builder(ggml_context* context, const Hparams& hparams, const Weights& weights, int layer,
          const LayerInputs& inputs)
      : LayerTensors(context, hparams, weights),
        in_(inputs),
        n_(inputs.x->ne[1]),
        group_(h_.n_heads / h_.n_kv_heads),
        mask_(h_.sliding_window[layer] > 0 ? inputs.sliding_mask : inputs.mask) {
    layer_ = layer;
    inputs_ = {inputs.positions, inputs.numbers};
  }

  void forward(LayerOutputs& out) {
    walk_layer();
    out.x = x_;
    add(out.x);
  }

  void backward(LayerOutputs& out) {
    out_ = &out;
    walk_layer();
    gradients_[x_] = in_.gradient;
    for (; !notes_.empty(); notes_.pop_back()) notes_.back()();
    out.gradient = gradients_[in_.x];
    for (ggml_tensor* result : {out.gradient, out.k, out.v, out.q, out.attended_gradient, out.moments})
      add(result);
  }

  ggml_cgraph* graph() const { return graph_; }

  using LayerTensors::run;

  void run(const Attend&) {
    ggml_tensor *token_q = q_, *token_k = k_, *token_v = v_;
    ggml_tensor *q = by_head(token_q), *k = by_head(token_k), *v = by_head(token_v);
    const auto [weights, slopes] = weigh(q, k);
    ggml_tensor* attended = ggml_mul_mat(c_, transposed(v), by_group(weights));
    attended_ = flat(by_token(ungrouped(attended)));
    note(attended_, [=, this, weights = weights, slopes = slopes](ggml_tensor* gradient) {
      out_->attended_gradient = by_head(ggml_reshape_3d(c_, gradient, h_.head_dim, h_.n_heads, n_));
      ggml_tensor* dy = by_group(out_->attended_gradient);
      ggml_tensor* by_scores = ungrouped(ggml_mul_mat(c_, v, dy));
      by_scores = ggml_soft_max_ext_back(c_, by_scores, weights, h_.softmax_scale, /*max_bias=*/0);
      // If no later operation read `weights`, ggml would let `by_scores` overwrite them in place. The
      // gradient by V reads `weights`, so it must come after this operation.
      ggml_build_forward_expand(graph_, by_scores);
      if (slopes != nullptr) by_scores = ggml_mul(c_, by_scores, slopes);
      ggml_tensor* sealed_scores = by_group(ggml_mul(c_, by_scores, in_.sealed));
      by_scores = by_group(by_scores);
      out_->k = k;
      out_->v = v;
      out_->q = q;
      ggml_tensor* unturned = h_.rotated[layer_] ? by_head(rope_back(token_q)) : q;
      out_->moments = moments(by_group(unturned), sealed_scores);
      give(token_q, by_token(ungrouped(ggml_mul_mat(c_, transposed(k), by_scores))));
      give(token_k, by_token(ggml_out_prod(c_, by_group(q), by_scores)));
      give(token_v, by_token(ggml_out_prod(c_, dy, by_group(weights))));
    });
  }

  // has_known_layers() refuses models with such steps.
  template <class Other>
  requires(one_of<Other, TemperQueries, RunDeltaNet, GateHeads, ReadLayerInput>) void run(const Other&) {
    KVANT_CHECK(false, "a step without a derivative");
  }

 private:
  void walk_layer() {
    x_ = in_.x;
    walk(h_.steps_to_attention(layer_), *this);
    for (const LayerSteps& steps : h_.steps_after_attention(/*has_experts=*/false)) walk(steps, *this);
  }

  void add(ggml_tensor* result) {
    ggml_set_output(result);
    ggml_build_forward_expand(graph_, result);
  }

  // note() and give() serve the derivative of an operation.

  template <class Back>
  void note(ggml_tensor* of, const Back& back) {
    notes_.push_back([=, this] {
      if (const auto found = gradients_.find(of); found != gradients_.end()) back(found->second);
    });
  }
  void give(ggml_tensor* to, ggml_tensor* gradient) {
    ggml_tensor*& all = gradients_[to];
    all = all == nullptr ? gradient : ggml_add(c_, all, gradient);
  }

  // The functions from less_mean() to activated() add operations and their transposed derivatives.

  ggml_tensor* less_mean(ggml_tensor* x) { return ggml_sub(c_, x, ggml_mean(c_, x)); }

  // A norm that subtracts the mean equals an RMS norm of the values minus their mean.
  ggml_tensor* norm(ggml_tensor* x, ggml_tensor* weight, ggml_tensor* bias) override {
    ggml_tensor* y = LayerTensors::norm(x, weight, bias);
    const bool subtracts = h_.architecture->layer_norm && weight != nullptr;
    note(y, [=, this](ggml_tensor* gradient) {
      if (weight != nullptr) gradient = ggml_mul(c_, gradient, weight);
      gradient = ggml_rms_norm_back(c_, gradient, subtracts ? less_mean(x) : x, h_.norm_epsilon);
      give(x, subtracts ? less_mean(gradient) : gradient);
    });
    return y;
  }

  ggml_tensor* multiply(const Linear& by, ggml_tensor* x) {
    ggml_tensor* y = ggml_mul_mat(c_, by.weight, x);
    if (by.bias != nullptr) y = ggml_add(c_, y, by.bias);
    note(y, [=, this](ggml_tensor* gradient) {
      give(x, ggml_out_prod(c_, by.weight, ggml_transpose(c_, gradient)));
    });
    return y;
  }
  ggml_tensor* multiply(ggml_tensor* weight, ggml_tensor* bias, ggml_tensor* x) override {
    return multiply({expanded(weight), bias}, x);
  }
  // Returns outputs [first, first + n) of a weight.
  Linear part(const Linear& of, std::int64_t first, std::int64_t n) {
    ggml_tensor* w = of.weight;
    return {ggml_view_2d(c_, w, w->ne[0], n, w->nb[1], first * w->nb[1]),
            of.bias == nullptr ? nullptr : ggml_view_1d(c_, of.bias, n, first * sizeof(float))};
  }

  ggml_tensor* rope(ggml_tensor* x) override {
    ggml_tensor* y = LayerTensors::rope(x);
    note(y, [=, this](ggml_tensor* gradient) { give(x, rope_back(gradient)); });
    return y;
  }
  ggml_tensor* rope_back(ggml_tensor* gradient) { return turned(ggml_rope_ext_back, gradient); }

  ggml_tensor* sum(ggml_tensor* a, ggml_tensor* b) override {
    ggml_tensor* y = LayerTensors::sum(a, b);
    note(y, [=, this](ggml_tensor* gradient) {
      give(a, gradient);
      give(b, gradient);
    });
    return y;
  }
  ggml_tensor* scaled(ggml_tensor* x, float by) override {
    ggml_tensor* y = LayerTensors::scaled(x, by);
    if (y == x) return x;
    note(y, [=, this](ggml_tensor* gradient) { give(x, ggml_scale(c_, gradient, by)); });
    return y;
  }

  // Reshapes [a, b, n_rows] to [a * b, n_rows].
  ggml_tensor* flat(ggml_tensor* x) { return ggml_reshape_2d(c_, x, x->ne[0] * x->ne[1], x->ne[2]); }
  ggml_tensor* as_rows(ggml_tensor* x) override {
    ggml_tensor* y = flat(x);
    note(y, [=, this](ggml_tensor* gradient) {
      give(x, ggml_reshape_3d(c_, gradient, x->ne[0], x->ne[1], x->ne[2]));
    });
    return y;
  }
  ggml_tensor* as_heads(ggml_tensor* x, int n_heads) override {
    ggml_tensor* y = ggml_reshape_3d(c_, x, h_.head_dim, n_heads, n_);
    note(y, [=, this](ggml_tensor* gradient) { give(x, flat(gradient)); });
    return y;
  }

  // Projects q, k and v by separate parts of a joint weight. The derivative then need not join their
  // gradients.
  void project_heads(ggml_tensor* x) override {
    const LayerWeights& w = weights();
    const std::int64_t n_q = h_.n_q(layer_), n_kv = h_.n_kv(layer_);
    const Linear all{expanded(w.qkv), w.qkv_bias};
    const auto heads = [&](ggml_tensor* weight, ggml_tensor* bias, std::int64_t first, std::int64_t n) {
      const Linear by = w.qkv == nullptr ? Linear{expanded(weight), bias} : part(all, first, n);
      return as_heads(multiply(by, x), static_cast<int>(n / h_.head_dim));
    };
    q_ = heads(w.q, w.q_bias, 0, n_q);
    k_ = heads(w.k, w.k_bias, n_q, n_kv);
    v_ = heads(w.v, w.v_bias, n_q + n_kv, n_kv);
  }

  ggml_tensor* network(const NetworkWeights& w, ggml_tensor* x) override {
    const Linear up{expanded(w.up), w.up_bias};
    const std::int64_t n_ff = h_.ff(layer_);
    if (w.gate == nullptr && !h_.architecture->unit.ungated) {  // one weight holds both
      ggml_tensor* gate = multiply(part(up, 0, n_ff), x);
      return multiply(w.down, w.down_bias, activated(gate, multiply(part(up, n_ff, n_ff), x)));
    }
    return LayerTensors::network(w, x);
  }

  struct Activated {
    ggml_tensor *value, *slope;
  };
  Activated silu(ggml_tensor* x) {
    ggml_tensor* sigma = ggml_sigmoid(c_, x);
    ggml_tensor* value = ggml_mul(c_, x, sigma);
    return {value, ggml_add(c_, sigma, ggml_sub(c_, value, ggml_mul(c_, value, sigma)))};
  }
  // On the CPU, ggml's own GELU rounds to half precision, so this one uses basic operations.
  Activated gelu(ggml_tensor* x) {
    constexpr float kRoot2OverPi = 0.79788456F, kCubic = 0.044715F;
    ggml_tensor* squared = ggml_sqr(c_, x);
    ggml_tensor* inside = ggml_mul(c_, x, ggml_scale_bias(c_, squared, kRoot2OverPi * kCubic, kRoot2OverPi));
    ggml_tensor* t = ggml_tanh(c_, inside);
    ggml_tensor* share = ggml_scale_bias(c_, t, 0.5F, 0.5F);
    // `slope` begins as the derivative of `share` by `inside`.
    ggml_tensor* slope = ggml_scale_bias(c_, ggml_sqr(c_, t), -0.5F, 0.5F);
    slope = ggml_mul(c_, slope, ggml_scale_bias(c_, squared, 3 * kRoot2OverPi * kCubic, kRoot2OverPi));
    return {ggml_mul(c_, x, share), ggml_add(c_, share, ggml_mul(c_, x, slope))};
  }
  Activated relu_squared(ggml_tensor* x) {
    ggml_tensor* positive = ggml_relu(c_, x);
    return {ggml_sqr(c_, positive), ggml_scale(c_, positive, 2)};
  }
  Activated activation(ggml_tensor* x) {
    switch (h_.architecture->unit.activation) {
      case Activation::silu:
        return silu(x);
      case Activation::gelu:
        return gelu(x);
      case Activation::relu_squared:
        return relu_squared(x);
      case Activation::clipped_silu:
        break;
    }
    KVANT_CHECK(false, "an activation without a derivative");
    return {};
  }

  ggml_tensor* activated(ggml_tensor* gate, ggml_tensor* up) override {
    const bool ungated = h_.architecture->unit.ungated;
    const Activated a = activation(ungated ? up : gate);
    ggml_tensor* y = ungated ? a.value : ggml_mul(c_, a.value, up);
    note(y, [=, this](ggml_tensor* gradient) {
      if (ungated) return give(up, ggml_mul(c_, gradient, a.slope));
      give(gate, ggml_mul(c_, ggml_mul(c_, gradient, up), a.slope));
      give(up, ggml_mul(c_, gradient, a.value));
    });
    return y;
  }

  // The functions from by_head() to moments() belong to attention.

  // Rearranges [head_dim, heads, n_rows] to [head_dim, n_rows, heads].
  ggml_tensor* by_head(ggml_tensor* x) { return ggml_cont(c_, ggml_permute(c_, x, 0, 2, 1, 3)); }
  ggml_tensor* by_token(ggml_tensor* x) { return by_head(x); }
  // Reshapes query heads [a, b, heads] to [a, b * group, n_kv_heads]. The query heads of a KV head are
  // adjacent.
  ggml_tensor* by_group(ggml_tensor* x) {
    return ggml_reshape_3d(c_, x, x->ne[0], x->ne[1] * group_, h_.n_kv_heads);
  }
  ggml_tensor* ungrouped(ggml_tensor* x) { return ggml_reshape_3d(c_, x, x->ne[0], n_, h_.n_heads); }
  // Transposes [head_dim, n_rows, heads] to [n_rows, head_dim, heads].
  ggml_tensor* transposed(ggml_tensor* x) { return ggml_cont(c_, ggml_transpose(c_, x)); }

  struct Weighed {
    ggml_tensor* weights;  // [keys, queries, n_heads]
    ggml_tensor* slopes;   // d capped / d score, with the shape of `weights`; null without a cap
  };
  Weighed weigh(ggml_tensor* q, ggml_tensor* k) {
    ggml_tensor* scores = ungrouped(ggml_mul_mat(c_, k, by_group(q)));
    if (h_.score_softcap == 0)
      return {ggml_soft_max_ext(c_, scores, mask_, h_.softmax_scale, /*max_bias=*/0), nullptr};
    ggml_tensor* t = ggml_tanh(c_, ggml_scale(c_, scores, h_.softmax_scale / h_.score_softcap));
    ggml_tensor* capped = ggml_scale(c_, t, h_.score_softcap);
    return {ggml_soft_max_ext(c_, capped, mask_, /*scale=*/1, /*max_bias=*/0),
            ggml_scale_bias(c_, ggml_sqr(c_, t), -1, 1)};
  }

  // Returns the second moments of queries q [head_dim, n_rows * group, n_kv_heads]. Each query is weighted by
  // the norm of the loss's derivative by its scores.
  ggml_tensor* moments(ggml_tensor* q, ggml_tensor* by_scores) {
    const std::int64_t n_queries = n_ * group_;
    ggml_tensor* squares = ggml_reshape_2d(c_, ggml_sqr(c_, by_scores), n_, n_queries * h_.n_kv_heads);
    ggml_tensor* lengths = ggml_sqrt(c_, ggml_mul_mat(c_, squares, in_.after_sink));
    lengths = ggml_reshape_3d(c_, lengths, 1, n_queries, h_.n_kv_heads);
    return ggml_out_prod(c_, ggml_mul(c_, q, lengths), q);
  }

  const LayerInputs& in_;
  std::int64_t n_;
  int group_;  // query heads per KV head
  ggml_tensor* mask_;
  LayerOutputs* out_ = nullptr;
  ggml_cgraph* graph_ = ggml_new_graph_custom(c_, kLayerGraphTensors, /*grads=*/false);
  std::vector<std::function<void()>> notes_;
  std::map<const ggml_tensor*, ggml_tensor*> gradients_;
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
