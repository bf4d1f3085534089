#include "model/device_graph.h"

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "model/layer_tensors.h"

namespace kvant {
namespace {

constexpr std::size_t kTensorsOfLayer = 192;  // number without the tensors of a delta net
constexpr std::size_t kStateAlignment = 256;  // bytes

}  // namespace

int GraphShape::n_slices() const {
  int n = 0;
  for (const SliceRun& run : runs) n += run.n_slices;
  return n;
}

namespace {

// Returns the largest number of tensors in any segment. A segment's number includes its layers, and what
// comes before and after the layers.
std::size_t tensors_of(const Hparams& h, const GraphShape& shape) {
  std::size_t longest = 2, n = 2;
  for (int layer = 0; layer < h.n_layers; ++layer) {
    n = h.recurrent[layer] ? n + 1 : 2;
    longest = std::max(longest, n);
  }
  const int of_net = h.n_recurrent() > 0 ? delta_net_tensors(static_cast<int>(shape.runs.size())) : 0;
  return longest * (kTensorsOfLayer + of_net);
}

}  // namespace

class DeviceGraph::Builder final : LayerTensors {
 public:
  Builder(DeviceGraph& graph, const Hparams& hparams, const Weights& weights, DeviceProducts products)
      : LayerTensors(graph.context_, hparams, weights),
        g_(graph),
        products_(products),
        t_(graph.transforms_) {}

  // Creates the tensors that keep a fixed address between segments.
  void fix() {
    ggml_context* c = g_.fixed_context_;
    Tensors& t = g_.tensors_;
    t.x = ggml_new_tensor_2d(c, GGML_TYPE_F32, h_.n_embd, g_.shape_.n_rows);
    t.positions = ggml_new_tensor_1d(c, GGML_TYPE_I32, g_.shape_.n_rows);
    int n_q = 0, n_kv = 0;  // columns of the widest layer
    for (int layer = 0; layer < h_.n_layers; ++layer) {
      n_q = std::max(n_q, h_.n_q(layer));
      n_kv = std::max(n_kv, h_.n_kv(layer));
    }
    t.q = ggml_new_tensor_2d(c, GGML_TYPE_F32, n_q, g_.shape_.n_rows);
    t.k = ggml_new_tensor_2d(c, GGML_TYPE_F32, n_kv, g_.shape_.n_rows);
    t.v = ggml_new_tensor_2d(c, GGML_TYPE_F32, n_kv, g_.shape_.n_rows);
    t.attended = ggml_dup_tensor(c, t.q);
    if (h_.gated_heads) t.gates = ggml_dup_tensor(c, t.attended);
    if (h_.temperature != 0) t.query_scales = ggml_new_tensor_3d(c, GGML_TYPE_F32, 1, 1, g_.shape_.n_rows);
    if (h_.n_layer_embd > 0) {
      t.layer_tokens = ggml_new_tensor_3d(c, GGML_TYPE_F32, h_.n_layer_embd, h_.n_layers, g_.shape_.n_rows);
      t.layer_inputs = ggml_dup_tensor(c, t.layer_tokens);
    }
    if (products_ == DeviceProducts::f32)
      t.numbers = ggml_new_tensor_1d(c, GGML_TYPE_I32, most_rows_of_a_weight());
    if (g_.shape_.n_logit_rows == 0) return;
    t.logit_rows = ggml_new_tensor_1d(c, GGML_TYPE_I32, g_.shape_.n_logit_rows);
    t.logits = ggml_new_tensor_2d(c, GGML_TYPE_F32, h_.n_vocab, g_.shape_.n_logit_rows);
  }

  // Creates the tensors for the states of delta nets. The tensors lie in memory that other graphs use as
  // well.
  void fix_states(ggml_backend_buffer* memory) {
    const DeltaNet& net = h_.delta_net;
    const int n_slices = g_.shape_.n_slices(), n_layers = h_.n_recurrent();
    DeltaStates& s = g_.tensors_.states;
    s.conv = ggml_new_tensor_3d(g_.fixed_context_, GGML_TYPE_F32, net.conv_values(), n_slices, n_layers);
    s.matrices =
        ggml_new_tensor_3d(g_.fixed_context_, GGML_TYPE_F32, net.matrix_values(), n_slices, n_layers);
    auto* base = static_cast<char*>(ggml_backend_buffer_get_base(memory));
    ggml_backend_tensor_alloc(memory, s.conv, base);
    ggml_backend_tensor_alloc(memory, s.matrices, base + GGML_PAD(ggml_nbytes(s.conv), kStateAlignment));
  }

  void run() {
    begin_segment();
    const Tensors& t = g_.tensors_;
    inputs_ = {t.positions, t.numbers, g_.shape_.short_rope};
    x_ = t.x;
    if (h_.n_layer_embd > 0) embed_for_layers();
    const bool wants_logits = g_.shape_.n_logit_rows > 0;
    for (layer_ = 0; layer_ < h_.n_layers; ++layer_) {
      wanted_only_ = layer_ == h_.n_layers - 1;
      if (!h_.recurrent[layer_] && x_ != t.x) put(x_, t.x);
      walk(h_.steps_to_attention(layer_), *this);
      if (wanted_only_ && !wants_logits) break;
      keep_wanted_rows();
      for (const LayerSteps& steps : h_.steps_after_attention(weights().router != nullptr))
        walk(steps, *this);
    }
    if (wants_logits) logits(x_);
    end_segment();
  }

  using LayerTensors::run;

  void run(const TemperQueries&) {
    if (g_.tensors_.query_scales != nullptr) q_ = ggml_mul(c_, q_, g_.tensors_.query_scales);
  }

  // The segment ends with queries, keys and values at their fixed addresses.
  void run(const Attend&) {
    const LayerTransforms& t = t_.layer(h_.place[layer_]);
    put_heads(transform(q_, t.q), g_.tensors_.q);
    if (k_ != nullptr) {
      put_heads(transform(k_, t.k), g_.tensors_.k);
      put_heads(transform(v_, t.v), g_.tensors_.v);
    }
    end_segment();
    begin_segment();
    x_ = g_.tensors_.x;
    attended_ = columns(g_.tensors_.attended, h_.n_q(layer_));
  }

  void run(const RunDeltaNet& step) {
    DeltaNetWeights delta = weights().delta;
    for (ggml_tensor** weight : {&delta.qkv, &delta.z, &delta.beta, &delta.alpha, &delta.beta_alpha})
      *weight = expanded(*weight);
    attended_ = add_delta_net(c_, graph_, h_, delta, g_.tensors_.states, h_.place[layer_], g_.shape_.runs,
                              rows(step.from));
  }

  // Multiplies attention's outputs by the sigmoid of their gates. A layer with a delta net has gated its
  // outputs already.
  void run(const GateHeads&) {
    if (!h_.recurrent[layer_])
      attended_ = ggml_mul(c_, attended_, ggml_sigmoid(c_, wanted(g_.tensors_.gates)));
  }

  void run(const ReadLayerInput&) {
    const LayerWeights& w = weights();
    ggml_tensor* inputs = g_.tensors_.layer_inputs;
    inputs = ggml_cont(
        c_, ggml_view_2d(c_, inputs, inputs->ne[0], inputs->ne[2], inputs->nb[2], layer_ * inputs->nb[1]));
    ggml_tensor* gate = ggml_gelu(c_, multiply(w.embd_gate, nullptr, x_));
    y_ = multiply(w.embd_out, nullptr, ggml_mul(c_, gate, wanted(inputs)));
  }

 private:
  void begin_segment() { graph_ = ggml_new_graph_custom(c_, tensors_of(h_, g_.shape_), false); }
  void end_segment() {
    if (ggml_graph_n_nodes(graph_) > 0) g_.segments_.push_back(graph_);
  }

  void add(ggml_tensor* node) { ggml_build_forward_expand(graph_, node); }

  // Makes the node write its result to the fixed tensor `place`, which is at least as large.
  void put(ggml_tensor* node, ggml_tensor* place) {
    node->buffer = place->buffer;
    node->data = place->data;
    add(node);
  }

  // Writes heads to a fixed tensor, like put(). Heads that are only a part of a product's result must be
  // copied.
  void put_heads(ggml_tensor* x, ggml_tensor* place) {
    ggml_tensor* whole = x->view_src == nullptr ? x : x->view_src;
    if (ggml_nbytes(whole) == ggml_nbytes(x) && ggml_is_contiguous(whole) && ggml_is_contiguous(x)) {
      put(whole, place);
    } else {
      const std::size_t head_bytes = x->ne[0] * sizeof(float);
      add(ggml_cpy(c_, x,
                   ggml_view_3d(c_, place, x->ne[0], x->ne[1], x->ne[2], head_bytes, x->ne[1] * head_bytes,
                                /*offset=*/0)));
    }
  }

  // Returns rows of n columns, packed at the start of a fixed tensor that has room for the widest layer.
  ggml_tensor* columns(ggml_tensor* place, int n) {
    return place->ne[0] == n ? place
                             : ggml_view_2d(c_, place, n, place->ne[1], n * sizeof(float), /*offset=*/0);
  }

  std::int64_t most_rows_of_a_weight() const {
    std::int64_t most = w_.output()->ne[1];
    for (int i = 0; i < h_.n_layers; ++i) {
      const LayerWeights& w = w_.layer(i);
      for (const ggml_tensor* t :
           {w.qkv, w.q, w.k, w.v, w.attn_out, w.ffn.gate, w.ffn.up, w.ffn.down, w.router, w.experts.gate,
            w.experts.up, w.experts.down, w.shared.gate, w.shared.up, w.shared.down, w.delta.qkv, w.delta.z,
            w.embd_gate, w.embd_out})
        if (t != nullptr) most = std::max(most, t->ne[1] * t->ne[2]);
    }
    if (w_.layer_projection() != nullptr) most = std::max(most, w_.layer_projection()->ne[1]);
    return most;
  }

  // Applies a transform to x [head_dim, n_heads, n_rows]. Each KV head's matrix applies to the query heads of
  // its group.
  ggml_tensor* transform(ggml_tensor* x, const DeviceTransform& by) {
    if (by.matrix == nullptr) return x;
    if (by.matrix->ne[2] == 1) {
      x = ggml_mul_mat(c_, by.matrix, ggml_is_contiguous(x) ? x : ggml_cont(c_, x));
    } else {
      ggml_tensor* by_head = ggml_cont(c_, ggml_permute(c_, x, 0, 2, 1, 3));  // [head_dim, n_rows, n_heads]
      x = ggml_cont(c_, ggml_permute(c_, ggml_mul_mat(c_, by.matrix, by_head), 0, 2, 1, 3));
    }
    if (by.offset == nullptr) return x;
    const std::int64_t group = x->ne[1] / by.offset->ne[1];
    ggml_tensor* offset = by.offset;
    if (group > 1) {  // [d, n_kv_heads] for the query heads of each group
      offset = ggml_reshape_3d(c_, offset, offset->ne[0], 1, offset->ne[1]);
      offset = ggml_repeat_4d(c_, offset, offset->ne[0], group, offset->ne[2], 1);
      offset = ggml_reshape_2d(c_, offset, offset->ne[0], x->ne[1]);
    }
    return ggml_add(c_, x, offset);
  }

  // Keeps the gates for the steps after attention.
  ggml_tensor* separate_from_gates(ggml_tensor* both) override {
    const std::size_t head_bytes = h_.head_dim * sizeof(float);
    ggml_tensor* gates =
        ggml_view_3d(c_, both, h_.head_dim, h_.n_heads, both->ne[1], 2 * head_bytes, both->nb[1], head_bytes);
    add(ggml_cpy(c_, gates, g_.tensors_.gates));
    return LayerTensors::separate_from_gates(both);
  }

  ggml_tensor* wanted(ggml_tensor* rows) {
    return wanted_only_ ? ggml_get_rows(c_, rows, g_.tensors_.logit_rows) : rows;
  }

  // After the last layer's attention or delta net, only rows whose logits are wanted continue.
  void keep_wanted_rows() {
    x_ = wanted(x_);
    attended_ = wanted(attended_);
    const LayerWeights& w = weights();
    // The rows that attention read were in an earlier segment, so their norm is computed again.
    if (h_.network_may_read_normed() && w.ffn_norm == nullptr)
      normed_ = norm(x_, w.attn_norm, w.attn_norm_bias);
    if (h_.recurrent[layer_]) return;
    const DeviceTransform& out = t_.layer(h_.place[layer_]).out;
    if (out.matrix == nullptr) return;
    attended_ = transform(heads(attended_, h_.n_heads), out);
    attended_ = ggml_reshape_2d(c_, attended_, h_.n_q(layer_), x_->ne[1]);
  }

  // Computes what all layers read of the tokens: the projected embeddings, RMS-normed by layer, plus the
  // layers' own embeddings. The norm must see the projection divided by sqrt(n_embd), so epsilon is
  // multiplied by n_embd.
  void embed_for_layers() {
    const Tensors& t = g_.tensors_;
    ggml_tensor* y = multiply(w_.layer_projection(), nullptr, t.x);
    y = ggml_reshape_3d(c_, y, h_.n_layer_embd, h_.n_layers, y->ne[1]);
    y = ggml_rms_norm(c_, y, h_.norm_epsilon * static_cast<float>(h_.n_embd));
    y = ggml_add(c_, ggml_mul(c_, y, w_.layer_projection_norm()), t.layer_tokens);
    put(ggml_scale(c_, y, std::sqrt(0.5F)), t.layer_inputs);
  }

  void logits(ggml_tensor* x) {
    x = norm(x, w_.output_norm(), w_.output_norm_bias());
    ggml_tensor* y = multiply(w_.output(), w_.output_bias(), x);
    if (h_.logit_scale != 1) y = ggml_scale(c_, y, h_.logit_scale);
    if (h_.logit_softcap > 0)
      y = ggml_scale(c_, ggml_tanh(c_, ggml_scale(c_, y, 1 / h_.logit_softcap)), h_.logit_softcap);
    put(y, g_.tensors_.logits);
  }

  DeviceGraph& g_;
  DeviceProducts products_;
  const PlanTransforms& t_;
  ggml_cgraph* graph_ = nullptr;
  bool wanted_only_ = false;  // true once only rows with wanted logits remain
};

DeviceGraph::DeviceGraph(const PlanTransforms& transforms, ggml_backend* backend, GraphShape shape)
    : transforms_(transforms), backend_(backend), shape_(std::move(shape)) {}

DeviceGraph::~DeviceGraph() {
  ggml_backend_synchronize(backend_);
  if (allocator_ != nullptr) ggml_gallocr_free(allocator_);
  if (fixed_ != nullptr) ggml_backend_buffer_free(fixed_);
  if (context_ != nullptr) ggml_free(context_);
  if (fixed_context_ != nullptr) ggml_free(fixed_context_);
}

Status DeviceGraph::check(const Hparams& hparams, ggml_backend* backend) {
  const auto refuse = [&](const char* what) {
    return error("{} does not support {}, which '{}' models have: use --device cpu",
                 ggml_backend_name(backend), what, hparams.architecture->name);
  };
  if (hparams.n_recurrent() > 0 && !device_has_delta_net(hparams.delta_net, backend))
    return refuse("delta nets of such heads or convolutions");
  return {};
}

std::size_t DeviceGraph::state_memory(const Hparams& hparams, int n_slices) {
  const DeltaNet& net = hparams.delta_net;
  const std::size_t of_each = sizeof(float) * n_slices * hparams.n_recurrent();
  return GGML_PAD(of_each * net.conv_values(), kStateAlignment) + of_each * net.matrix_values();
}

Result<std::unique_ptr<DeviceGraph>> DeviceGraph::build(const Hparams& hparams, const Weights& weights,
                                                        DeviceProducts products,
                                                        const PlanTransforms& transforms,
                                                        ggml_backend* backend, GraphShape shape,
                                                        ggml_backend_buffer* states) {
  const std::size_t n_segments = hparams.n_layers - hparams.n_recurrent() + 1;
  const std::size_t n_tensors = tensors_of(hparams, shape);
  const int n_rows = shape.n_rows;
  std::unique_ptr<DeviceGraph> graph(new DeviceGraph(transforms, backend, std::move(shape)));
  graph->context_ = ggml_init(
      {n_segments * (n_tensors * ggml_tensor_overhead() + ggml_graph_overhead_custom(n_tensors, false)),
       nullptr, /*no_alloc=*/true});
  graph->fixed_context_ =
      ggml_init({(sizeof(Tensors) / sizeof(void*) + 1) * ggml_tensor_overhead(), nullptr, /*no_alloc=*/true});
  KVANT_CHECK(graph->context_ != nullptr && graph->fixed_context_ != nullptr,
              "no memory for a graph's description");
  Builder builder(*graph, hparams, weights, products);
  builder.fix();
  if (states != nullptr) builder.fix_states(states);
  const auto out_of_memory = [&] {
    return shortage(
        "out of memory on the device: no room for the activations of {} tokens; process fewer in one step",
        n_rows);
  };
  graph->fixed_ = ggml_backend_alloc_ctx_tensors(graph->fixed_context_, backend);
  if (graph->fixed_ == nullptr) return out_of_memory();
  graph->send_numbers();
  builder.run();
  for (ggml_cgraph* segment : graph->segments_) {
    for (int i = 0; i < ggml_graph_n_nodes(segment); ++i) {
      const ggml_tensor* node = ggml_graph_node(segment, i);
      if (ggml_backend_supports_op(backend, node)) continue;
      return error("{} can't compute {} of weights of type {}: use --device cpu", ggml_backend_name(backend),
                   ggml_op_desc(node), node->src[0] == nullptr ? "-" : ggml_type_name(node->src[0]->type));
    }
  }
  if (!graph->allocate().ok()) return out_of_memory();
  return graph;
}

// All segments use the same memory, because they run one at a time. First the memory grows to the size of the
// largest segment. Then the tensors of each segment get their addresses.
Status DeviceGraph::allocate() {
  allocator_ = ggml_gallocr_new(ggml_backend_get_default_buffer_type(backend_));
  for (ggml_cgraph* segment : segments_) {
    if (!ggml_gallocr_reserve(allocator_, segment)) return error("out of memory");
  }
  for (ggml_cgraph* segment : segments_) {
    if (!ggml_gallocr_alloc_graph(allocator_, segment)) return error("out of memory");
  }
  return {};
}

std::int64_t DeviceGraph::bytes() const {
  return static_cast<std::int64_t>(ggml_gallocr_get_buffer_size(allocator_, 0) +
                                   ggml_backend_buffer_get_size(fixed_));
}

void DeviceGraph::send_numbers() {
  if (tensors_.numbers == nullptr) return;
  std::vector<std::int32_t> numbers(tensors_.numbers->ne[0]);
  std::iota(numbers.begin(), numbers.end(), 0);
  ggml_backend_tensor_set(tensors_.numbers, numbers.data(), 0, ggml_nbytes(tensors_.numbers));
}

void DeviceGraph::set_rows(const ForwardRows& rows, const RowValues& values) {
  const Tensors& t = tensors_;
  for (const auto& [to, from] : {std::pair{t.x, &values.embedded},
                                 {t.layer_tokens, &values.embedded_for_layers},
                                 {t.query_scales, &values.query_scales}}) {
    if (to != nullptr) ggml_backend_tensor_set_async(backend_, to, from->data(), 0, ggml_nbytes(to));
  }
  ggml_backend_tensor_set_async(backend_, t.positions, rows.positions.data(), 0, ggml_nbytes(t.positions));
  if (shape_.n_logit_rows == 0 || std::ranges::equal(rows.logit_rows, sent_logit_rows_)) return;
  sent_logit_rows_.assign(rows.logit_rows.begin(), rows.logit_rows.end());
  ggml_backend_tensor_set_async(backend_, t.logit_rows, sent_logit_rows_.data(), 0,
                                ggml_nbytes(t.logit_rows));
}

Status DeviceGraph::start(int segment) {
  if (segment >= std::ssize(segments_)) return {};
  if (ggml_backend_graph_compute_async(backend_, segments_[segment]) == GGML_STATUS_SUCCESS) return {};
  return shortage("out of memory while computing a step");
}

void DeviceGraph::read_logits(MatrixView<float> logits) {
  const std::size_t row_bytes = logits.cols * sizeof(float);
  const int together = logits.stride == logits.cols ? logits.rows : 1;  // this many rows are copied at a time
  for (int r = 0; r < logits.rows; r += together)
    ggml_backend_tensor_get_async(backend_, tensors_.logits, logits.row(r), r * row_bytes,
                                  together * row_bytes);
  ggml_backend_synchronize(backend_);
}

void DeviceGraph::read(const ggml_tensor* from, std::span<float> to) const {
  ggml_backend_tensor_get_async(backend_, from, to.data(), 0, to.size_bytes());
}

void DeviceGraph::read_queries(std::span<float> q) const {
  read(tensors_.q, q);
  ggml_backend_synchronize(backend_);
}
void DeviceGraph::read_inputs(std::span<float> q, std::span<float> k, std::span<float> v) const {
  read(tensors_.q, q);
  if (!k.empty()) read(tensors_.k, k);
  if (!v.empty()) read(tensors_.v, v);
  ggml_backend_synchronize(backend_);
}
void DeviceGraph::read_attended(std::span<float> out) const {
  read(tensors_.attended, out);
  ggml_backend_synchronize(backend_);
}
void DeviceGraph::write_attended(std::span<const float> out) {
  ggml_backend_tensor_set_async(backend_, tensors_.attended, out.data(), 0, out.size_bytes());
}

float* DeviceGraph::q() const {
  return static_cast<float*>(tensors_.q->data);
}
float* DeviceGraph::k() const {
  return static_cast<float*>(tensors_.k->data);
}
float* DeviceGraph::v() const {
  return static_cast<float*>(tensors_.v->data);
}
float* DeviceGraph::attended() const {
  return static_cast<float*>(tensors_.attended->data);
}
float* DeviceGraph::conv_states() const {
  return static_cast<float*>(tensors_.states.conv->data);
}
float* DeviceGraph::matrix_states() const {
  return static_cast<float*>(tensors_.states.matrices->data);
}

}  // namespace kvant
