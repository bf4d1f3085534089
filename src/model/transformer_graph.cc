#include "model/transformer_graph.h"

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml.h>

#include <cmath>

namespace kvant {
namespace {

constexpr std::size_t kNodesPerLayer = 48;

}  // namespace

class TransformerGraph::Builder {
 public:
  Builder(TransformerGraph& graph, const Hparams& hparams, const Weights& weights, MatrixProduct& product,
          AttentionCall& call)
      : g_(graph), h_(hparams), w_(weights), product_(product), call_(call), c_(graph.context_) {}

  void run() {
    g_.tokens_ = input(g_.n_rows_);
    g_.positions_ = input(g_.n_rows_);
    if (g_.n_logit_rows_ > 0) g_.logit_rows_ = input(g_.n_logit_rows_);
    g_.sites_.resize(h_.n_layers);
    ggml_tensor* x = ggml_get_rows(c_, w_.token_embedding(), g_.tokens_);
    if (h_.architecture->scales_embedding) x = ggml_scale(c_, x, std::sqrt(static_cast<float>(h_.n_embd)));
    for (int layer = 0; layer < h_.n_layers; ++layer) {
      ggml_tensor* attended = attend(layer, x);
      if (layer == h_.n_layers - 1) {
        if (g_.n_logit_rows_ == 0) return ggml_build_forward_expand(g_.graph_, attended);
        attended = ggml_get_rows(c_, attended, g_.logit_rows_);
        x = ggml_get_rows(c_, x, g_.logit_rows_);
      }
      x = feed_forward(layer, project_attended(layer, attended, x));
    }
    g_.logits_ = logits(x);
    ggml_set_output(g_.logits_);
    ggml_build_forward_expand(g_.graph_, g_.logits_);
  }

 private:
  ggml_tensor* input(int n) {
    ggml_tensor* t = ggml_new_tensor_1d(c_, GGML_TYPE_I32, n);
    ggml_set_input(t);
    return t;
  }

  ggml_tensor* norm(ggml_tensor* x, ggml_tensor* weight) {
    return ggml_mul(c_, ggml_rms_norm(c_, x, h_.rms_epsilon), weight);
  }

  ggml_tensor* multiply(ggml_tensor* weight, ggml_tensor* bias, ggml_tensor* x) {
    ggml_tensor* y = product_.multiply(c_, weight, x);
    return bias == nullptr ? y : ggml_add(c_, y, bias);
  }

  // Channels [first, first + n_heads * head_dim) of every row of y, as [head_dim, n_heads, n_rows].
  ggml_tensor* heads(ggml_tensor* y, int n_heads, std::size_t first = 0) {
    return ggml_view_3d(c_, y, h_.head_dim, n_heads, g_.n_rows_, h_.head_dim * sizeof(float), y->nb[1],
                        first * sizeof(float));
  }

  ggml_tensor* rotate(ggml_tensor* x, int layer) {
    const Rope& r = h_.sliding_window[layer] > 0 ? h_.sliding_rope : h_.rope;
    const int mode = h_.architecture->rope_neox ? GGML_ROPE_TYPE_NEOX : GGML_ROPE_TYPE_NORMAL;
    return ggml_rope_ext(c_, x, g_.positions_, w_.rope_factors(), h_.n_rot, mode, r.original_context, r.base,
                         r.frequency_scale, r.extension, r.magnitude, r.beta_fast, r.beta_slow);
  }

  // x [n_embd, n_rows] -> the heads' outputs [n_heads * head_dim, n_rows].
  ggml_tensor* attend(int layer, ggml_tensor* x) {
    const LayerWeights& w = w_.layer(layer);
    ggml_tensor* h = norm(x, w.attn_norm);
    ggml_tensor *q, *k, *v;
    if (w.qkv != nullptr) {
      ggml_tensor* qkv = multiply(w.qkv, w.qkv_bias, h);
      const std::size_t n_q = static_cast<std::size_t>(h_.n_heads) * h_.head_dim;
      const std::size_t n_kv = static_cast<std::size_t>(h_.n_kv_heads) * h_.head_dim;
      q = heads(qkv, h_.n_heads);
      k = heads(qkv, h_.n_kv_heads, n_q);
      v = heads(qkv, h_.n_kv_heads, n_q + n_kv);
    } else {
      q = heads(multiply(w.q, w.q_bias, h), h_.n_heads);
      k = heads(multiply(w.k, w.k_bias, h), h_.n_kv_heads);
      v = heads(multiply(w.v, w.v_bias, h), h_.n_kv_heads);
    }
    if (w.q_norm != nullptr) q = norm(q, w.q_norm);
    if (w.k_norm != nullptr) k = norm(k, w.k_norm);
    ggml_tensor* sources[] = {rotate(q, layer), rotate(k, layer), v};
    g_.sites_[layer] = {&call_, layer, h_.head_dim};
    return ggml_custom_4d(c_, GGML_TYPE_F32, static_cast<std::int64_t>(h_.n_heads) * h_.head_dim, g_.n_rows_,
                          1, 1, sources, 3, attention_op, GGML_N_TASKS_MAX, &g_.sites_[layer]);
  }

  // The attention block's end: output projection and residual.
  ggml_tensor* project_attended(int layer, ggml_tensor* attended, ggml_tensor* x) {
    const LayerWeights& w = w_.layer(layer);
    ggml_tensor* y = multiply(w.attn_out, w.attn_out_bias, attended);
    if (w.attn_post_norm != nullptr) y = norm(y, w.attn_post_norm);
    return ggml_add(c_, y, x);
  }

  ggml_tensor* feed_forward(int layer, ggml_tensor* x) {
    const LayerWeights& w = w_.layer(layer);
    ggml_tensor* h = norm(x, w.ffn_norm);
    ggml_tensor* y = multiply(w.down, w.down_bias, activate(w, h));
    if (w.ffn_post_norm != nullptr) y = norm(y, w.ffn_post_norm);
    return ggml_add(c_, y, x);
  }

  // activation(gate) * up.
  ggml_tensor* activate(const LayerWeights& w, ggml_tensor* h) {
    const ggml_glu_op op =
        h_.architecture->activation == Activation::gelu ? GGML_GLU_OP_GEGLU : GGML_GLU_OP_SWIGLU;
    ggml_tensor* up = multiply(w.up, w.up_bias, h);
    if (w.gate == nullptr) return ggml_glu(c_, up, op, /*swapped=*/false);
    return ggml_glu_split(c_, multiply(w.gate, w.gate_bias, h), up, op);
  }

  ggml_tensor* logits(ggml_tensor* x) {
    ggml_tensor* y = multiply(w_.output(), w_.output_bias(), norm(x, w_.output_norm()));
    if (h_.logit_softcap <= 0) return y;
    y = ggml_tanh(c_, ggml_scale(c_, y, 1 / h_.logit_softcap));
    return ggml_scale(c_, y, h_.logit_softcap);
  }

  TransformerGraph& g_;
  const Hparams& h_;
  const Weights& w_;
  MatrixProduct& product_;
  AttentionCall& call_;
  ggml_context* c_;
};

TransformerGraph::TransformerGraph(int n_rows, int n_logit_rows)
    : n_rows_(n_rows), n_logit_rows_(n_logit_rows) {}

TransformerGraph::~TransformerGraph() {
  if (allocator_ != nullptr) ggml_gallocr_free(allocator_);
  if (context_ != nullptr) ggml_free(context_);
}

Result<std::unique_ptr<TransformerGraph>> TransformerGraph::build(const Hparams& hparams,
                                                                  const Weights& weights,
                                                                  MatrixProduct& product, AttentionCall& call,
                                                                  int n_rows, int n_logit_rows) {
  std::unique_ptr<TransformerGraph> g(new TransformerGraph(n_rows, n_logit_rows));
  const std::size_t n_nodes = (hparams.n_layers + 1) * kNodesPerLayer;
  g->context_ =
      ggml_init({n_nodes * ggml_tensor_overhead() + ggml_graph_overhead_custom(n_nodes, false), nullptr,
                 /*no_alloc=*/true});
  KVANT_CHECK(g->context_ != nullptr, "no memory for a graph's description");
  g->graph_ = ggml_new_graph_custom(g->context_, n_nodes, false);
  Builder(*g, hparams, weights, product, call).run();
  g->allocator_ = ggml_gallocr_new(ggml_backend_cpu_buffer_type());
  if (!ggml_gallocr_alloc_graph(g->allocator_, g->graph_)) {
    return error("out of memory: no room for the activations of {} tokens; process fewer in one step",
                 n_rows);
  }
  return g;
}

std::int64_t TransformerGraph::bytes() const {
  return static_cast<std::int64_t>(ggml_gallocr_get_buffer_size(allocator_, 0));
}

std::int32_t* TransformerGraph::tokens() const {
  return static_cast<std::int32_t*>(tokens_->data);
}
std::int32_t* TransformerGraph::positions() const {
  return static_cast<std::int32_t*>(positions_->data);
}
std::int32_t* TransformerGraph::logit_rows() const {
  return static_cast<std::int32_t*>(logit_rows_->data);
}
const float* TransformerGraph::logits() const {
  return static_cast<const float*>(logits_->data);
}

void TransformerGraph::attention_op(ggml_tensor* out, int thread, int n_threads, void* data) {
  const auto& site = *static_cast<const AttentionSite*>(data);
  const int n_rows = static_cast<int>(out->ne[1]);
  const auto rows_by_head = [&](const ggml_tensor* t) {
    const int width = static_cast<int>(t->ne[0] * t->ne[1]);
    return MatrixView<const float>(static_cast<const float*>(t->data), n_rows, width,
                                   static_cast<std::ptrdiff_t>(t->nb[2] / sizeof(float)));
  };
  const LayerRows rows{
      rows_by_head(out->src[0]), rows_by_head(out->src[1]), rows_by_head(out->src[2]),
      MatrixView<float>(static_cast<float*>(out->data), n_rows, static_cast<int>(out->ne[0]))};
  Team team(thread, n_threads, site.call->team);
  (*site.call->attention)(site.layer, rows, team);
}

}  // namespace kvant
