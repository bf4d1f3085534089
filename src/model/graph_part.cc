#include "model/graph_part.h"

#include <ggml.h>

#include <algorithm>
#include <cmath>

#include "model/layer_tensors.h"

namespace kvant {
namespace {

constexpr std::size_t kTensorsPerLayer = 96;
// Threads share outputs and rows in multiples of these units. ggml's repacked layouts interleave up to 16
// rows of weights. Its products take 4 rows of activations at once.
constexpr int kUnitOutputs = 32;
constexpr int kUnitRows = 4;

struct Range {
  int first = 0, end = 0;
  int size() const { return end - first; }
};

Range share(int n, int unit, int thread, int n_threads) {
  const std::int64_t n_units = (n + unit - 1) / unit;
  const auto bound = [&](std::int64_t i) {
    return std::min(n, static_cast<int>(n_units * i / n_threads) * unit);
  };
  return {bound(thread), bound(thread + 1)};
}

// Returns the part of `whole` within [first, first + n), counted from `first`. The result may be empty.
Range overlap(Range whole, int first, int n) {
  const int begin = std::clamp(whole.first - first, 0, n);
  return {begin, std::clamp(whole.end - first, begin, n)};
}

// Block is the part of an activation that one thread computes.
struct Block {
  Range rows, cols;
  bool empty() const { return rows.size() == 0 || cols.size() == 0; }
};

void set_row_stride(ggml_tensor* t, std::size_t bytes) {
  t->nb[1] = bytes;
  t->nb[2] = t->nb[1] * t->ne[1];
  t->nb[3] = t->nb[2] * t->ne[2];
}

// Makes `result` use the memory of `place`, a tensor of the same shape.
ggml_tensor* put(ggml_tensor* result, const ggml_tensor* place) {
  result->data = place->data;
  std::copy(std::begin(place->nb), std::end(place->nb), std::begin(result->nb));
  return result;
}

}  // namespace

class GraphPart::Builder {
 public:
  Builder(GraphPart& part, const GraphBuffers& buffers)
      : part_(part),
        h_(part.parts_.hparams),
        w_(part.parts_.weights),
        product_(part.parts_.product),
        b_(buffers),
        c_(part.context_) {}

  void run() {
    use(b_.all);
    embed();
    if (h_.n_layer_embd > 0) embed_for_layers();
    for (layer_ = 0; layer_ < h_.n_layers; ++layer_) {
      walk(h_.steps_to_attention(layer_), *this);
      if (layer_ == h_.n_layers - 1 && b_.wanted.n_rows == 0) return;
      for (const LayerSteps& steps : h_.steps_after_attention(weights().router != nullptr))
        walk(steps, *this);
    }
    if (b_.states.data == nullptr) return logits();
    // With few rows, every thread has all states, and thread 0 writes them.
    if (many_ || part_.thread_ == 0) norm(r_.x, w_.output_norm(), w_.output_norm_bias(), b_.states);
  }

  // Each function run() adds a step of a layer.

  void run(const Norm& step) {
    ggml_tensor* weight = weights().*step.weights.weight;
    if (weight == nullptr) return;
    ggml_tensor* bias = step.weights.bias == nullptr ? nullptr : weights().*step.weights.bias;
    const ActivationRows& in = rows(step.from);
    if (step.to == RowSet::h) return norm(in, weight, bias, r_.h);
    if (!many_) synchronize();
    if (step.to == RowSet::y) {
      // With few rows, the threads share y, but each thread needs the norm of all of y. The norm therefore
      // goes to the thread's own h.
      norm(in, weight, bias, r_.h);
      y_ = r_.h;
    } else {  // if there are few rows, all threads share the rows, so one thread norms them in place
      if (many_ || part_.thread_ == 0) norm(in, weight, bias, rows(step.to));
      unfinished_ = true;
    }
  }

  void run(const ProjectHeads& step) {
    const LayerWeights& w = weights();
    const bool has_kv = h_.has_kv(layer_);
    const int n_kv = has_kv ? h_.n_kv(layer_) : 0;
    const AttentionColumns at(h_, layer_);
    qkv_ = b_.qkv;
    qkv_.cols = at.width;
    // One thread computes a head of q together with its gates.
    const Range outputs = my_outputs(at.projected_q + 2 * n_kv, (h_.gated_heads ? 2 : 1) * h_.dim(layer_));
    q_ = {0, overlap(outputs, 0, at.projected_q), w.q_norm};
    k_ = {at.k, overlap(outputs, at.k, n_kv), w.k_norm};
    v_ = {at.v, overlap(outputs, at.v, n_kv), nullptr};
    gated_ = q_.columns;
    const ActivationRows& in = rows(step.from);
    if (w.qkv != nullptr) return multiply(w.qkv, w.qkv_bias, in, qkv_, outputs);
    multiply(w.q, w.q_bias, in, qkv_, q_.columns);
    if (!has_kv) return;
    multiply(w.k, w.k_bias, in, qkv_, k_.columns, at.k);
    multiply(w.v, w.v_bias, in, qkv_, v_.columns, at.v);
  }

  void run(const NormHeads& step) {
    if (step.of_rows) return norm_rows();
    if (h_.gated_heads)
      separate_from_gates();
    else
      norm_heads(q_);
    norm_heads(k_);
  }

  void run(const TurnHeads&) {
    if (!h_.rotated[layer_]) return;
    for (const Projection& p : {q_, k_}) with_heads(p, [&](ggml_tensor* x) { add(put(rope(x), x)); });
  }

  void run(const TemperQueries&) {
    if (b_.query_scales == nullptr) return;
    with_heads(q_, [&](ggml_tensor* x) { add(put(ggml_mul(c_, x, query_scales()), x)); });
  }

  void run(const NormValues&) {
    with_heads(v_, [&](ggml_tensor* x) { add(put(ggml_rms_norm(c_, x, h_.norm_epsilon), x)); });
  }

  void run(const Attend&) {
    const bool has_kv = h_.has_kv(layer_);
    const int d = h_.dim(layer_), n_q = h_.n_q(layer_), n_kv = has_kv ? h_.n_kv(layer_) : 0;
    const AttentionColumns at(h_, layer_);
    const Range all_rows{0, r_.n_rows};
    ggml_tensor* sources[] = {heads(qkv_, {all_rows, {at.q, at.q + n_q}}, d),
                              heads(qkv_, {all_rows, {at.k, at.k + n_kv}}, d),
                              heads(qkv_, {all_rows, {at.v, at.v + n_kv}}, d)};
    give_attended(n_q, sources, has_kv ? 3 : 1, attention_op);
  }

  void run(const RunDeltaNet& step) {
    const LayerWeights& w = weights();
    ActivationRows projected = b_.qkv;
    projected.cols = h_.delta_net.width();
    int first = 0;
    for (ggml_tensor* weight : {w.delta.qkv, w.delta.z, w.delta.beta, w.delta.alpha, w.delta.beta_alpha}) {
      if (weight == nullptr) continue;
      const int n = static_cast<int>(weight->ne[1]);
      multiply(weight, nullptr, rows(step.from), projected, my_outputs(n), first);
      first += n;
    }
    ggml_tensor* source = tensor(projected, {{0, r_.n_rows}, {0, projected.cols}});
    give_attended(h_.delta_net.inner(), &source, 1, delta_net_op);
  }

  // Computes attended *= sigmoid(gates) for this thread's heads. A layer with a delta net has gated its
  // outputs already.
  void run(const GateHeads&) {
    if (h_.recurrent[layer_]) return;
    const int d = h_.dim(layer_);
    const Range columns{gated_.first / 2, gated_.end / 2};
    if (rows_.size() > 0 && columns.size() > 0) {
      const Block gates{rows_, {gated_.first + d, gated_.end}};
      ggml_tensor* gate = every_head(qkv_, gates, d, columns.size() / d, 2);
      gate = put(ggml_sigmoid(c_, gate), gate);
      ggml_tensor* y = heads(attended_, {rows_, columns}, d);
      add(put(ggml_mul(c_, y, gate), y));
    }
    unfinished_ = true;
  }

  void run(const ProjectBack&) {
    if (layer_ == h_.n_layers - 1) keep_wanted_rows();
    multiply(weights().attn_out, weights().attn_out_bias, attended_, r_.y, my_outputs(h_.n_embd));
    y_ = r_.y;
  }

  void run(const Add& step) {
    if (!many_) synchronize();
    const ActivationRows to = rows(step.to);
    if (step.to == RowSet::x && h_.residual_scale != 1) {
      add(put(ggml_scale(c_, tensor(y_), h_.residual_scale), tensor(r_.h)));
      y_ = r_.h;
    }
    ggml_tensor* sum = tensor(to);
    add(put(step.to == RowSet::x ? ggml_add(c_, tensor(rows(step.from)), sum)
                                 : ggml_add(c_, sum, tensor(rows(step.from))),
            sum));
    unfinished_ = unfinished_ || to.shared;
  }

  void run(const RunNetwork& step) {
    const ActivationRows& out = step.to == RowSet::y ? r_.y : rows(step.to);
    network(weights().ffn, h_.ff(layer_), rows(step.from), out);
    if (step.to == RowSet::y) y_ = out;
  }

  // Computes the router's logits.
  void run(const RouteRows& step) {
    multiply(weights().router, weights().router_bias, rows(step.from), b_.router, my_outputs(h_.experts.n));
  }

  void run(const RunExperts& step) {
    const LayerWeights& w = weights();
    const ActivationRows& in = rows(step.from);
    if (w.shared.up != nullptr) network(w.shared, h_.experts.n_ff_shared, in, b_.shared);
    const Range all_rows{0, r_.n_rows};
    const auto all_of = [&](const ActivationRows& a) { return tensor(a, {all_rows, {0, a.cols}}); };
    ggml_tensor* sources[] = {all_of(in), all_of(b_.router), all_of(b_.shared)};
    add(put(ggml_custom_4d(c_, GGML_TYPE_F32, h_.n_embd, r_.n_rows, 1, 1, sources, 3, experts_op, 1, site()),
            all_of(r_.y)));
    unfinished_ = false;  // the op's threads wait for one another at its start and at its end
    y_ = r_.y;
  }

  void run(const ScaleByWidth& step) { scale(rows(step.rows), 1 / std::sqrt(static_cast<float>(h_.n_embd))); }

  void run(const ReadLayerInput&) {
    const LayerWeights& w = weights();
    const int n = h_.n_layer_embd;
    const Range outputs = my_outputs(n);
    multiply(w.embd_gate, nullptr, r_.x, b_.layer_gates, outputs);
    const Block block{rows_, outputs};
    if (!block.empty()) {
      const bool is_last = layer_ == h_.n_layers - 1;
      const int first = is_last ? 0 : layer_ * n;
      ggml_tensor* input = tensor(is_last ? b_.wanted_inputs : b_.layer_inputs,
                                  {rows_, {first + outputs.first, first + outputs.end}});
      ggml_tensor* gate = tensor(b_.layer_gates, block);
      add(put(ggml_mul(c_, put(ggml_gelu(c_, gate), gate), input), gate));
    }
    unfinished_ = true;
    multiply(w.embd_out, nullptr, b_.layer_gates, r_.y, my_outputs(h_.n_embd));
    y_ = r_.y;
  }

  void run(const ScaleLayer&) {
    if (weights().scale != 1) scale(r_.x, weights().scale);
  }

 private:
  // The functions from use() to synchronize() decide which thread computes what, and add the nodes of this
  // thread.

  void use(const ResidualRows& rows) {
    r_ = rows;
    many_ = MatrixProduct::is_batch(rows.n_rows);
    rows_ = many_ ? mine(rows.n_rows, kUnitRows) : Range{0, rows.n_rows};
  }
  Range mine(int n, int unit) const { return share(n, unit, part_.thread_, part_.parts_.n_threads); }
  // Returns the outputs of a product with n outputs that this thread computes.
  Range my_outputs(int n, int unit = kUnitOutputs) const { return many_ ? Range{0, n} : mine(n, unit); }

  void add(ggml_tensor* node) {
    if (!ggml_is_empty(node)) ggml_build_forward_expand(part_.graph_, node);
  }

  // Adds a barrier to the graph if other threads may still be writing values that this thread reads next.
  void synchronize() {
    if (!unfinished_) return;
    ggml_tensor* none = nullptr;
    ggml_tensor* node = ggml_custom_4d(c_, GGML_TYPE_F32, 1, 1, 1, 1, &none, 0, barrier_op, 1, &part_);
    node->data = part_.sites_.data();  // any address works, because the op writes nothing
    add(node);
    unfinished_ = false;
  }

  // The functions from tensor() to part_of() make tensors that view the buffers.

  ggml_tensor* tensor(const ActivationRows& a, const Block& block) {
    ggml_tensor* t = ggml_new_tensor_2d(c_, GGML_TYPE_F32, block.cols.size(), block.rows.size());
    t->data = a.data + static_cast<std::ptrdiff_t>(block.rows.first) * a.cols + block.cols.first;
    set_row_stride(t, a.cols * sizeof(float));
    return t;
  }
  ggml_tensor* tensor(const ActivationRows& a) { return tensor(a, {rows_, {0, a.cols}}); }

  // Returns a view of the block as heads of d channels, [d, n_heads, n_rows].
  ggml_tensor* heads(const ActivationRows& a, const Block& block, int d) {
    return every_head(a, block, d, block.cols.size() / d, 1);
  }

  // Returns a view of n_heads heads of d channels, every `step`-th one from the block's first column on.
  ggml_tensor* every_head(const ActivationRows& a, const Block& block, int d, int n_heads, int step) {
    ggml_tensor* t = ggml_new_tensor_3d(c_, GGML_TYPE_F32, d, n_heads, block.rows.size());
    t->data = a.data + static_cast<std::ptrdiff_t>(block.rows.first) * a.cols + block.cols.first;
    t->nb[1] = static_cast<std::size_t>(step) * d * sizeof(float);
    t->nb[2] = a.cols * sizeof(float);
    t->nb[3] = t->nb[2] * t->ne[2];
    return t;
  }

  ggml_tensor* indices(std::int32_t* values, Range range) {
    ggml_tensor* t = ggml_new_tensor_1d(c_, GGML_TYPE_I32, range.size());
    t->data = values + range.first;
    return t;
  }

  // Returns a view of a range of rows of a weight, or of elements of a bias. A view of a repacked weight is
  // repacked, too.
  ggml_tensor* part_of(ggml_tensor* weight, Range range) {
    const bool is_matrix = weight->ne[1] > 1;
    ggml_tensor* t = is_matrix ? ggml_new_tensor_2d(c_, weight->type, weight->ne[0], range.size())
                               : ggml_new_tensor_1d(c_, weight->type, range.size());
    t->data = static_cast<char*>(weight->data) + range.first * weight->nb[is_matrix ? 1 : 0];
    t->buffer = weight->buffer;
    t->extra = weight->extra;
    return t;
  }

  // The functions from norm() to embed_for_layers() add operations.

  // Computes out = norm(in) * weight + bias for this thread's rows. `out` may be `in`.
  void norm(ggml_tensor* in, ggml_tensor* weight, ggml_tensor* bias, ggml_tensor* out) {
    ggml_tensor* y = h_.architecture->layer_norm ? ggml_norm(c_, in, h_.norm_epsilon)
                                                 : ggml_rms_norm(c_, in, h_.norm_epsilon);
    y = put(ggml_mul(c_, put(y, out), weight), out);
    add(bias == nullptr ? y : put(ggml_add(c_, y, bias), out));
  }
  void norm(const ActivationRows& in, ggml_tensor* weight, ggml_tensor* bias, const ActivationRows& out) {
    norm(tensor(in), weight, bias, tensor(out));
    unfinished_ = unfinished_ || out.shared;
  }

  // Computes out[:, first + outputs] = in W^T + bias for the rows `outputs` of W.
  void multiply(ggml_tensor* weight, ggml_tensor* bias, const ActivationRows& in, const ActivationRows& out,
                Range outputs, int first = 0) {
    const Block block{rows_, {first + outputs.first, first + outputs.end}};
    const bool together = many_ && MatrixProduct::takes(weight);
    if (in.shared && (together || !many_)) synchronize();
    if (together) {
      const Range all_rows{0, r_.n_rows};
      ggml_tensor* x = tensor(in, {all_rows, {0, in.cols}});
      add(put(product_.multiply(c_, part_of(weight, outputs), x, part_.thread_),
              tensor(out, {all_rows, block.cols})));
      unfinished_ = false;
    } else {
      if (!block.empty()) {
        ggml_tensor* x = tensor(in);
        add(put(ggml_mul_mat(c_, part_of(weight, outputs), x), tensor(out, block)));
      }
      unfinished_ = true;
    }
    if (bias == nullptr) return;
    ggml_tensor* y = tensor(out, block);
    if (!block.empty()) add(put(ggml_add(c_, y, part_of(bias, outputs)), y));
    unfinished_ = true;
  }

  void embed() {
    ggml_tensor* x = tensor(r_.x);
    if (rows_.size() > 0) add(put(ggml_get_rows(c_, w_.token_embedding(), indices(b_.tokens, rows_)), x));
    if (h_.embedding_scale != 1) add(put(ggml_scale(c_, x, h_.embedding_scale), x));
    unfinished_ = r_.x.shared;
  }

  // Computes what all layers read of the tokens: the projected embeddings, RMS-normed by layer, plus the
  // layers' own embeddings.
  void embed_for_layers() {
    const int n = h_.n_layer_embd, n_all = h_.n_layers * n;
    const Range outputs = my_outputs(n_all, n);
    multiply(w_.layer_projection(), nullptr, r_.x, b_.layer_inputs, outputs);
    const Range my_rows = mine(r_.n_rows, kUnitRows);
    if (my_rows.size() > 0) {
      ggml_tensor* own = tensor(b_.layer_tokens, {my_rows, {0, n_all}});
      own = put(ggml_get_rows(c_, w_.layer_embedding(), indices(b_.tokens, my_rows)), own);
      add(put(ggml_scale(c_, own, std::sqrt(static_cast<float>(n))), own));
    }
    unfinished_ = true;
    if (!many_) synchronize();
    const Block block{rows_, outputs};
    if (block.empty()) return;
    // The norm must see the projection divided by sqrt(n_embd), so epsilon is multiplied by n_embd.
    ggml_tensor* x = heads(b_.layer_inputs, block, n);
    x = put(ggml_rms_norm(c_, x, h_.norm_epsilon * static_cast<float>(h_.n_embd)), x);
    x = put(ggml_mul(c_, x, w_.layer_projection_norm()), x);
    add(put(ggml_add(c_, x, heads(b_.layer_tokens, block, n)), x));
    const int together = many_ ? rows_.size() : 1;  // ggml can scale only contiguous values
    for (int row = rows_.first; row < rows_.end; row += together) {
      ggml_tensor* some = tensor(b_.layer_inputs, {{row, row + together}, outputs});
      add(put(ggml_scale(c_, some, std::sqrt(0.5F)), some));
    }
  }

  // Several steps share the functions from weights() to scale_logits().

  const LayerWeights& weights() const { return w_.layer(layer_); }
  Site* site() { return &part_.sites_[layer_]; }

  const ActivationRows& rows(RowSet which) const {
    switch (which) {
      case RowSet::x:
        return r_.x;
      case RowSet::h:
        return r_.h;
      case RowSet::y:
        return y_;
      case RowSet::dense:
        break;
    }
    return b_.dense;
  }

  // Projection describes this thread's heads of q, k or v. `columns` is a range of the columns that begin at
  // `first` in qkv.
  struct Projection {
    int first = 0;
    Range columns;
    ggml_tensor* norm = nullptr;
    Range in_qkv() const { return {first + columns.first, first + columns.end}; }
  };

  // Calls of(heads) if this thread has any of the projection's heads.
  template <class Of>
  void with_heads(const Projection& p, const Of& of) {
    const Block block{rows_, p.in_qkv()};
    if (!block.empty()) of(heads(qkv_, block, h_.dim(layer_)));
  }

  void norm_heads(const Projection& p) {
    if (p.norm == nullptr) return;
    const int d = h_.dim(layer_);
    with_heads(p, [&](ggml_tensor* x) {
      const bool by_head = p.norm->ne[1] > 1;  // each head has weights of its own
      norm(x, by_head ? part_of(p.norm, {p.columns.first / d, p.columns.end / d}) : p.norm, nullptr, x);
    });
  }

  // Norms whole rows, which needs the columns of other threads. With few rows, which are split by columns,
  // the first thread therefore norms all of q and the last thread norms all of k.
  void norm_rows() {
    if (!many_) {
      synchronize();
      q_.columns = {0, part_.thread_ == 0 ? h_.n_q(layer_) : 0};
      k_.columns = {0, part_.thread_ == part_.parts_.n_threads - 1 ? h_.n_kv(layer_) : 0};
    }
    for (const Projection& p : {q_, k_}) {
      const Block block{rows_, p.in_qkv()};
      if (block.empty()) continue;
      ggml_tensor* x = tensor(qkv_, block);
      norm(x, p.norm, nullptr, x);
    }
  }

  // Copies q, which alternates with its gates, to columns of its own.
  void separate_from_gates() {
    const int d = h_.dim(layer_);
    const Range in = q_.columns;
    const Projection q{AttentionColumns(h_, layer_).q, {in.first / 2, in.end / 2}, nullptr};
    const Block from{rows_, in}, to{rows_, q.in_qkv()};
    if (!from.empty())
      norm(every_head(qkv_, from, d, in.size() / (2 * d), 2), q_.norm, nullptr, heads(qkv_, to, d));
    q_ = q;
  }

  ggml_tensor* rope(ggml_tensor* x) {
    return turn_heads(c_, ggml_rope_ext, h_, w_, layer_, indices(b_.positions, rows_),
                      part_.parts_.short_rope, x);
  }

  // Returns the scales [1, 1, n] of this thread's rows.
  ggml_tensor* query_scales() {
    ggml_tensor* t = ggml_new_tensor_3d(c_, GGML_TYPE_F32, 1, 1, rows_.size());
    t->data = b_.query_scales + rows_.first;
    return t;
  }

  // Adds an op that the whole team computes. The op's result for all rows takes the place of attention's
  // outputs. The op's threads wait for one another at its start and at its end.
  void give_attended(int n_cols, ggml_tensor** sources, int n_sources, ggml_custom_op_t op) {
    attended_ = b_.attended;
    attended_.cols = n_cols;
    ggml_tensor* out =
        ggml_custom_4d(c_, GGML_TYPE_F32, n_cols, r_.n_rows, 1, 1, sources, n_sources, op, 1, site());
    add(put(out, tensor(attended_, {{0, r_.n_rows}, {0, n_cols}})));
    unfinished_ = false;
  }

  // Keeps only the rows whose logits are wanted for the rest of the graph.
  void keep_wanted_rows() {
    synchronize();
    const Range all_rows{0, r_.n_rows};
    ggml_tensor* x = tensor(r_.x, {all_rows, {0, h_.n_embd}});
    ggml_tensor* h = tensor(r_.h, {all_rows, {0, h_.n_embd}});
    ggml_tensor* attended = tensor(attended_, {all_rows, {0, attended_.cols}});
    const int n_cols = attended_.cols;
    attended_ = b_.wanted_attended;
    attended_.cols = n_cols;
    use(b_.wanted);
    if (rows_.size() > 0) {
      ggml_tensor* wanted = indices(b_.logit_rows, rows_);
      add(put(ggml_get_rows(c_, x, wanted), tensor(r_.x)));
      if (h_.network_may_read_normed()) add(put(ggml_get_rows(c_, h, wanted), tensor(r_.h)));
      add(put(ggml_get_rows(c_, attended, wanted), tensor(attended_)));
      if (const int n = h_.n_layer_embd; n > 0) {
        const int first = (h_.n_layers - 1) * n;
        ggml_tensor* inputs = tensor(b_.layer_inputs, {all_rows, {first, first + n}});
        add(put(ggml_get_rows(c_, inputs, wanted), tensor(b_.wanted_inputs)));
      }
    }
    unfinished_ = many_;
  }

  void scale(const ActivationRows& a, float by) {
    ggml_tensor* x = tensor(a);
    add(put(ggml_scale(c_, x, by), x));
    unfinished_ = unfinished_ || a.shared;
  }

  void network(const NetworkWeights& w, int n_ff, const ActivationRows& in, const ActivationRows& out) {
    ActivationRows hidden = b_.gate, up = b_.up;
    hidden.cols = up.cols = n_ff;
    activate(w, in, hidden, up);
    multiply(w.down, w.down_bias, hidden, out, my_outputs(h_.n_embd));
  }

  // Computes hidden = activation(gate) * up, or hidden = activation(up) without a gate.
  void activate(const NetworkWeights& w, const ActivationRows& in, const ActivationRows& hidden,
                const ActivationRows& up) {
    const int n_ff = hidden.cols;
    const Range outputs = my_outputs(n_ff);
    const Block block{rows_, outputs};
    if (unit_.ungated) {
      multiply(w.up, w.up_bias, in, hidden, outputs);
    } else if (w.gate != nullptr) {
      multiply(w.gate, w.gate_bias, in, hidden, outputs);
      multiply(w.up, w.up_bias, in, up, outputs);
    } else {  // one weight holds both
      multiply(w.up, w.up_bias, in, hidden, outputs);
      multiply(w.up, w.up_bias, in, up, {n_ff + outputs.first, n_ff + outputs.end}, -n_ff);
    }
    if (!block.empty()) {
      ggml_tensor* x = tensor(hidden, block);
      if (unit_.ungated) {
        add(put(activation(x), x));
      } else {
        const bool gelu = unit_.activation == Activation::gelu;
        add(put(ggml_glu_split(c_, x, tensor(up, block), gelu ? GGML_GLU_OP_GEGLU : GGML_GLU_OP_SWIGLU), x));
      }
    }
    unfinished_ = true;
  }

  ggml_tensor* activation(ggml_tensor* x) {
    if (unit_.activation == Activation::gelu) return ggml_gelu(c_, x);
    return ggml_sqr(c_, put(ggml_relu(c_, x), x));
  }

  void logits() {
    const Range outputs = my_outputs(h_.n_vocab);
    norm(r_.x, w_.output_norm(), w_.output_norm_bias(), r_.h);
    multiply(w_.output(), w_.output_bias(), r_.h, b_.logits, outputs);
    if (h_.logit_softcap <= 0 && h_.logit_scale == 1) return;
    if (many_) return scale_logits({rows_, outputs});
    for (int row = 0; row < r_.n_rows; ++row)
      scale_logits({{row, row + 1}, outputs});  // ggml can scale only contiguous values
  }

  // Multiplies logits y by the scale, and then replaces them by cap tanh(y / cap).
  void scale_logits(const Block& block) {
    if (block.empty()) return;
    ggml_tensor* y = tensor(b_.logits, block);
    if (h_.logit_scale != 1) add(put(ggml_scale(c_, y, h_.logit_scale), y));
    if (h_.logit_softcap <= 0) return;
    ggml_tensor* scaled = put(ggml_scale(c_, y, 1 / h_.logit_softcap), y);
    add(put(ggml_scale(c_, put(ggml_tanh(c_, scaled), y), h_.logit_softcap), y));
  }

  GraphPart& part_;
  const Hparams& h_;
  const Weights& w_;
  const NetworkUnit unit_ = h_.architecture->unit;
  MatrixProduct& product_;
  GraphBuffers b_;
  ggml_context* c_;
  ResidualRows r_;     // the rows in use
  bool many_ = false;  // whether each thread takes only some of the rows
  Range rows_;         // the rows that this thread computes
  int layer_ = 0;
  ActivationRows y_;               // the present outputs of a block are here
  ActivationRows qkv_, attended_;  // rows of the current layer
  Projection q_, k_, v_;           // the heads of this thread
  Range gated_;                    // the columns that hold this thread's heads of q with their gates
  bool unfinished_ = false;        // other threads may still be writing the newest result
};

GraphPart::GraphPart(const GraphParts& parts, int thread, const GraphBuffers& buffers)
    : parts_(parts), thread_(thread), sites_(parts.hparams.n_layers) {
  const std::size_t n_tensors = (parts.hparams.n_layers + 2) * kTensorsPerLayer;
  context_ =
      ggml_init({n_tensors * ggml_tensor_overhead() + ggml_graph_overhead_custom(n_tensors, false), nullptr,
                 /*no_alloc=*/true});
  KVANT_CHECK(context_ != nullptr, "no memory for a graph's description");
  graph_ = ggml_new_graph_custom(context_, n_tensors, false);
  for (int layer = 0; layer < parts.hparams.n_layers; ++layer) sites_[layer] = {this, layer};
  Builder(*this, buffers).run();
}

GraphPart::~GraphPart() {
  if (context_ != nullptr) ggml_free(context_);
}

void GraphPart::barrier_op(ggml_tensor*, int, int, void* part) {
  static_cast<const GraphPart*>(part)->team().barrier();
}

void GraphPart::delta_net_op(ggml_tensor* out, int, int, void* data) {
  const auto& site = *static_cast<const Site*>(data);
  const GraphParts& parts = site.part->parts_;
  const auto rows = [](const ggml_tensor* t) {
    return MatrixView<float>(static_cast<float*>(t->data), static_cast<int>(t->ne[1]),
                             static_cast<int>(t->ne[0]));
  };
  Team team = site.part->team();
  parts.delta_net.run(parts.weights.layer(site.layer).delta, parts.hparams.place[site.layer],
                      {rows(out->src[0]), rows(out)}, team);
}

void GraphPart::experts_op(ggml_tensor* out, int, int, void* data) {
  const auto& site = *static_cast<const Site*>(data);
  const auto rows = [](const ggml_tensor* t) {
    return MatrixView<float>(static_cast<float*>(t->data), static_cast<int>(t->ne[1]),
                             static_cast<int>(t->ne[0]),
                             static_cast<std::ptrdiff_t>(t->nb[1] / sizeof(float)));
  };
  Team team = site.part->team();
  site.part->parts_.experts.run(site.part->parts_.weights.layer(site.layer),
                                {rows(out->src[0]), rows(out->src[1]), rows(out->src[2]), rows(out)}, team);
}

void GraphPart::attention_op(ggml_tensor* out, int, int, void* data) {
  const auto& site = *static_cast<const Site*>(data);
  const int n_rows = static_cast<int>(out->ne[1]);
  const auto rows_by_head = [&](const ggml_tensor* t) -> MatrixView<const float> {
    if (t == nullptr) return {};  // the layer attends to another layer's cache
    const int width = static_cast<int>(t->ne[0] * t->ne[1]);
    return MatrixView<const float>(static_cast<const float*>(t->data), n_rows, width,
                                   static_cast<std::ptrdiff_t>(t->nb[2] / sizeof(float)));
  };
  const LayerRows rows{
      rows_by_head(out->src[0]), rows_by_head(out->src[1]), rows_by_head(out->src[2]),
      MatrixView<float>(static_cast<float*>(out->data), n_rows, static_cast<int>(out->ne[0]))};
  Team team = site.part->team();
  const GraphParts& parts = site.part->parts_;
  (*parts.call.attention)(parts.hparams.place[site.layer], rows, team);
}

}  // namespace kvant
