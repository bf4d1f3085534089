#include "model/device_delta_net.h"

#include <ggml-backend.h>
#include <ggml.h>

#include <algorithm>
#include <cmath>
#include <memory>

namespace kvant {
namespace {

constexpr std::size_t kBytes = sizeof(float);

// DeltaNetGraph adds one layer's gated delta net to a graph.
class DeltaNetGraph {
 public:
  DeltaNetGraph(ggml_context* context, ggml_cgraph* graph, const Hparams& hparams,
                const DeltaNetWeights& weights, const DeltaStates& states, int place)
      : c_(context),
        graph_(graph),
        net_(hparams.delta_net),
        grouped_(hparams.delta_net.grouped),
        norm_epsilon_(hparams.norm_epsilon),
        w_(weights),
        states_(states),
        place_(place) {}

  ggml_tensor* run(std::span<const SliceRun> runs, ggml_tensor* h) {
    qkv_ = ggml_mul_mat(c_, w_.qkv, h);
    z_ = ggml_mul_mat(c_, w_.z, h);
    project_gates(h);
    ggml_tensor* all = nullptr;
    int first_row = 0, first_slice = 0;
    for (const SliceRun& run : runs) {
      ggml_tensor* some = run_slices(run, first_row, first_slice);
      all = all == nullptr ? some : ggml_concat(c_, all, some, 1);
      first_row += run.n_slices * run.n_tokens;
      first_slice += run.n_slices;
    }
    return all;
  }

 private:
  // Computes betas_ and decays_ (as logarithms), [n_value_heads, n_rows] each.
  void project_gates(ggml_tensor* h) {
    ggml_tensor *beta, *alpha;
    if (w_.beta_alpha == nullptr) {
      beta = ggml_mul_mat(c_, w_.beta, h);
      alpha = ggml_mul_mat(c_, w_.alpha, h);
    } else {
      ggml_tensor* both = ggml_mul_mat(c_, w_.beta_alpha, h);
      const std::int64_t group = net_.n_value_heads / net_.n_key_heads, n_rows = h->ne[1];
      const auto half = [&](std::int64_t first) {
        ggml_tensor* view = ggml_view_3d(c_, both, group, net_.n_key_heads, n_rows, 2 * group * kBytes,
                                         both->nb[1], first * kBytes);
        return ggml_cont_2d(c_, view, net_.n_value_heads, n_rows);
      };
      beta = half(0);
      alpha = half(group);
    }
    betas_ = ggml_sigmoid(c_, beta);
    decays_ = ggml_mul(c_, ggml_softplus(c_, ggml_add(c_, alpha, w_.dt_bias)), w_.a);
  }

  // Adds the rows of one run, which begins at first_row, and returns their outputs [inner, rows].
  ggml_tensor* run_slices(const SliceRun& run, int first_row, int first_slice) {
    const std::int64_t d = net_.head_dim, n_key = net_.n_key_heads, n_value = net_.n_value_heads;
    const std::int64_t n_tokens = run.n_tokens, n_slices = run.n_slices, n_rows = n_tokens * n_slices;
    ggml_tensor* convolved = convolve(run, first_row, first_slice);  // [channels, n_tokens, n_slices]
    // Returns a view of n of a token's n_all heads, beginning with head `first`.
    const auto heads = [&](ggml_tensor* from, std::int64_t n_all, std::int64_t first, std::int64_t n) {
      const std::size_t head_bytes = d * kBytes, token_bytes = n_all * head_bytes;
      return ggml_view_4d(c_, from, d, n, n_tokens, n_slices, head_bytes, token_bytes, n_tokens * token_bytes,
                          first * head_bytes);
    };
    // q and k are scaled to length 1. The recurrence itself divides q by sqrt(d).
    const auto length = static_cast<float>(d);
    ggml_tensor* qk = ggml_scale(
        c_, ggml_rms_norm(c_, heads(convolved, net_.n_heads(), 0, 2 * n_key), norm_epsilon_ / length),
        1 / std::sqrt(length));
    std::int64_t n_each = n_key;
    if (grouped_) {  // ggml's recurrence lets value head h read head h mod n, so heads are repeated
      qk = ggml_reshape_4d(c_, qk, d, 1, 2 * n_key, n_rows);
      qk = ggml_repeat_4d(c_, qk, d, n_value / n_key, 2 * n_key, n_rows);
      qk = ggml_reshape_4d(c_, qk, d, 2 * n_value, n_tokens, n_slices);
      n_each = n_value;
    }
    const auto of_rows = [&](ggml_tensor* gates) {  // [1, n_value, n_tokens, n_slices]
      return ggml_view_4d(c_, gates, 1, n_value, n_tokens, n_slices, kBytes, gates->nb[1],
                          gates->nb[1] * n_tokens, gates->nb[1] * first_row);
    };
    ggml_tensor* before = of_slices(states_.matrices, run, first_slice);
    ggml_tensor* both =
        ggml_gated_delta_net(c_, heads(qk, 2 * n_each, 0, n_each), heads(qk, 2 * n_each, n_each, n_each),
                             heads(convolved, net_.n_heads(), 2 * n_key, n_value), of_rows(decays_),
                             of_rows(betas_), ggml_reshape_4d(c_, before, d, d, n_value, n_slices),
                             /*K=*/1);
    // The result holds the outputs, followed by the new states. ggml's CUDA backend fuses the copy below with
    // the recurrence. The recurrence then writes the new states over the old states.
    ggml_tensor* after = ggml_view_2d(c_, both, before->ne[0], n_slices, before->ne[0] * kBytes,
                                      static_cast<std::size_t>(n_rows) * net_.inner() * kBytes);
    add(ggml_cpy(c_, after, before));
    ggml_tensor* y = ggml_view_3d(c_, both, d, n_value, n_rows, d * kBytes, net_.inner() * kBytes, 0);
    y = ggml_mul(c_, ggml_rms_norm(c_, y, norm_epsilon_), w_.norm);
    ggml_tensor* z = ggml_view_3d(c_, z_, d, n_value, n_rows, d * kBytes, z_->nb[1], z_->nb[1] * first_row);
    return ggml_reshape_2d(c_, ggml_swiglu_split(c_, z, y), net_.inner(), n_rows);
  }

  ggml_tensor* convolve(const SliceRun& run, int first_row, int first_slice) {
    const int n_before = net_.kernel - 1;
    ggml_tensor* rows = ggml_view_3d(c_, qkv_, net_.channels(), run.n_tokens, run.n_slices, qkv_->nb[1],
                                     qkv_->nb[1] * run.n_tokens, qkv_->nb[1] * first_row);
    ggml_tensor* before = of_slices(states_.conv, run, first_slice);
    before = ggml_reshape_3d(c_, before, n_before, net_.channels(), run.n_slices);
    ggml_tensor* inputs = ggml_concat(c_, before, ggml_transpose(c_, rows), 0);
    ggml_tensor* newest = ggml_view_3d(c_, inputs, n_before, net_.channels(), run.n_slices, inputs->nb[1],
                                       inputs->nb[2], run.n_tokens * kBytes);
    add(ggml_cpy(c_, newest, before));
    return ggml_silu(c_, ggml_ssm_conv(c_, inputs, w_.conv));
  }

  // Returns a view of this layer's states for the slices of a run, [values, n_slices].
  ggml_tensor* of_slices(ggml_tensor* all, const SliceRun& run, int first_slice) {
    return ggml_view_2d(c_, all, all->ne[0], run.n_slices, all->nb[1],
                        place_ * all->nb[2] + first_slice * all->nb[1]);
  }

  void add(ggml_tensor* node) { ggml_build_forward_expand(graph_, node); }

  ggml_context* c_;
  ggml_cgraph* graph_;
  const DeltaNet& net_;
  bool grouped_;
  float norm_epsilon_;
  const DeltaNetWeights& w_;
  const DeltaStates& states_;
  int place_;
  ggml_tensor *qkv_ = nullptr, *z_ = nullptr, *betas_ = nullptr, *decays_ = nullptr;
};

}  // namespace

bool device_has_delta_net(const DeltaNet& net, ggml_backend* backend) {
  const auto is_one_of = [](int n, std::initializer_list<int> of) {
    return std::find(of.begin(), of.end(), n) != of.end();
  };
  if (!is_one_of(net.head_dim, {16, 32, 64, 128}) || !is_one_of(net.kernel, {3, 4, 5, 9, 15})) return false;
  constexpr std::size_t kTensors = 3;
  const std::unique_ptr<ggml_context, void (*)(ggml_context*)> context(
      ggml_init({kTensors * ggml_tensor_overhead(), nullptr, /*no_alloc=*/true}), ggml_free);
  KVANT_CHECK(context != nullptr, "no memory for the description of an operation");
  ggml_tensor* inputs = ggml_new_tensor_3d(context.get(), GGML_TYPE_F32, net.kernel, net.channels(), 1);
  ggml_tensor* weights = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, net.kernel, net.channels());
  return ggml_backend_supports_op(backend, ggml_ssm_conv(context.get(), inputs, weights));
}

ggml_tensor* add_delta_net(ggml_context* context, ggml_cgraph* graph, const Hparams& hparams,
                           const DeltaNetWeights& weights, const DeltaStates& states, int place,
                           std::span<const SliceRun> runs, ggml_tensor* h) {
  return DeltaNetGraph(context, graph, hparams, weights, states, place).run(runs, h);
}

}  // namespace kvant
