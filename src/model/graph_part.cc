#include "model/graph_part.h"

#include <ggml.h>

#include <algorithm>
#include <cmath>

namespace kvant {
namespace {

constexpr std::size_t kTensorsPerLayer = 96;
// Outputs of a product, and rows, are dealt to threads in units of these: ggml's repacked layouts interleave
// up to 16 weight rows, and their products take 4 activation rows at once.
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

// The part of `whole` within [first, first + n), counted from `first`; may be empty.
Range overlap(Range whole, int first, int n) {
  const int begin = std::clamp(whole.first - first, 0, n);
  return {begin, std::clamp(whole.end - first, begin, n)};
}

// A block of an activation: all that a thread computes of it.
struct Block {
  Range rows, cols;
  bool empty() const { return rows.size() == 0 || cols.size() == 0; }
};

void set_row_stride(ggml_tensor* t, std::size_t bytes) {
  t->nb[1] = bytes;
  t->nb[2] = t->nb[1] * t->ne[1];
  t->nb[3] = t->nb[2] * t->ne[2];
}

// `result` takes the place of a tensor of its shape.
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
    for (int layer = 0; layer < h_.n_layers; ++layer) {
      attend(layer);
      ActivationRows attended = b_.attended;
      if (layer == h_.n_layers - 1) {
        if (b_.wanted.n_rows == 0) return;
        attended = keep_wanted_rows();
      }
      project_attended(w_.layer(layer), attended);
      feed_forward(w_.layer(layer));
    }
    logits();
  }

 private:
  // --- who computes what ---

  void use(const ResidualRows& rows) {
    r_ = rows;
    many_ = MatrixProduct::is_batch(rows.n_rows);
    rows_ = many_ ? mine(rows.n_rows, kUnitRows) : Range{0, rows.n_rows};
  }
  Range mine(int n, int unit) const { return share(n, unit, part_.thread_, part_.parts_.n_threads); }
  // Of n outputs of a product.
  Range my_outputs(int n, int unit = kUnitOutputs) const { return many_ ? Range{0, n} : mine(n, unit); }

  void add(ggml_tensor* node) {
    if (!ggml_is_empty(node)) ggml_build_forward_expand(part_.graph_, node);
  }

  // Waits until what other threads have computed is there, if they may have computed something.
  void synchronize() {
    if (!unfinished_) return;
    ggml_tensor* none = nullptr;
    ggml_tensor* node = ggml_custom_4d(c_, GGML_TYPE_F32, 1, 1, 1, 1, &none, 0, barrier_op, 1, &part_);
    node->data = part_.sites_.data();  // any address: the op writes nothing
    add(node);
    unfinished_ = false;
  }

  // --- tensors that lie in the buffers ---

  ggml_tensor* tensor(const ActivationRows& a, const Block& block) {
    ggml_tensor* t = ggml_new_tensor_2d(c_, GGML_TYPE_F32, block.cols.size(), block.rows.size());
    t->data = a.data + static_cast<std::ptrdiff_t>(block.rows.first) * a.cols + block.cols.first;
    set_row_stride(t, a.cols * sizeof(float));
    return t;
  }
  ggml_tensor* tensor(const ActivationRows& a) { return tensor(a, {rows_, {0, a.cols}}); }

  // Columns `cols` as heads [head_dim, n_heads, n_rows].
  ggml_tensor* heads(const ActivationRows& a, const Block& block) {
    ggml_tensor* t = ggml_new_tensor_3d(c_, GGML_TYPE_F32, h_.head_dim, block.cols.size() / h_.head_dim,
                                        block.rows.size());
    t->data = a.data + static_cast<std::ptrdiff_t>(block.rows.first) * a.cols + block.cols.first;
    t->nb[2] = a.cols * sizeof(float);
    t->nb[3] = t->nb[2] * t->ne[2];
    return t;
  }

  ggml_tensor* indices(std::int32_t* values, Range range) {
    ggml_tensor* t = ggml_new_tensor_1d(c_, GGML_TYPE_I32, range.size());
    t->data = values + range.first;
    return t;
  }

  // Rows of a weight, or elements of a bias; a repacked weight stays what it is.
  ggml_tensor* part_of(ggml_tensor* weight, Range range) {
    const bool is_matrix = weight->ne[1] > 1;
    ggml_tensor* t = is_matrix ? ggml_new_tensor_2d(c_, weight->type, weight->ne[0], range.size())
                               : ggml_new_tensor_1d(c_, weight->type, range.size());
    t->data = static_cast<char*>(weight->data) + range.first * weight->nb[is_matrix ? 1 : 0];
    t->buffer = weight->buffer;
    t->extra = weight->extra;
    return t;
  }

  // --- ops ---

  // out = norm(in) * weight, for this thread's rows; may be in place.
  void norm(ggml_tensor* in, ggml_tensor* weight, ggml_tensor* out) {
    add(put(ggml_mul(c_, put(ggml_rms_norm(c_, in, h_.rms_epsilon), out), weight), out));
  }
  void norm(const ActivationRows& in, ggml_tensor* weight, const ActivationRows& out) {
    norm(tensor(in), weight, tensor(out));
    unfinished_ = unfinished_ || out.shared;
  }

  // out[:, first + outputs] = in W^T + bias, for `outputs` of W.
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
    if (h_.architecture->scales_embedding)
      add(put(ggml_scale(c_, x, std::sqrt(static_cast<float>(h_.n_embd))), x));
  }

  void rotate(const Block& block, ggml_tensor* norm_weight, int layer) {
    if (block.empty()) return;
    ggml_tensor* x = heads(b_.qkv, block);
    if (norm_weight != nullptr) norm(x, norm_weight, x);
    const Rope& r = h_.sliding_window[layer] > 0 ? h_.sliding_rope : h_.rope;
    const int mode = h_.architecture->rope_neox ? GGML_ROPE_TYPE_NEOX : GGML_ROPE_TYPE_NORMAL;
    add(put(ggml_rope_ext(c_, x, indices(b_.positions, rows_), w_.rope_factors(), h_.n_rot, mode,
                          r.original_context, r.base, r.frequency_scale, r.extension, r.magnitude,
                          r.beta_fast, r.beta_slow),
            x));
  }

  void attend(int layer) {
    const LayerWeights& w = w_.layer(layer);
    const int n_q = h_.n_heads * h_.head_dim, n_kv = h_.n_kv_heads * h_.head_dim;
    const Range outputs = my_outputs(n_q + 2 * n_kv, h_.head_dim);
    const Range q = overlap(outputs, 0, n_q), k = overlap(outputs, n_q, n_kv),
                v = overlap(outputs, n_q + n_kv, n_kv);
    norm(r_.x, w.attn_norm, r_.h);
    if (w.qkv != nullptr) {
      multiply(w.qkv, w.qkv_bias, r_.h, b_.qkv, outputs);
    } else {
      multiply(w.q, w.q_bias, r_.h, b_.qkv, q);
      multiply(w.k, w.k_bias, r_.h, b_.qkv, k, n_q);
      multiply(w.v, w.v_bias, r_.h, b_.qkv, v, n_q + n_kv);
    }
    rotate({rows_, q}, w.q_norm, layer);
    rotate({rows_, {n_q + k.first, n_q + k.end}}, w.k_norm, layer);
    const Range all_rows{0, r_.n_rows};
    ggml_tensor* sources[] = {heads(b_.qkv, {all_rows, {0, n_q}}),
                              heads(b_.qkv, {all_rows, {n_q, n_q + n_kv}}),
                              heads(b_.qkv, {all_rows, {n_q + n_kv, n_q + 2 * n_kv}})};
    part_.sites_[layer] = {&part_, layer};
    add(put(ggml_custom_4d(c_, GGML_TYPE_F32, n_q, r_.n_rows, 1, 1, sources, 3, attention_op, 1,
                           &part_.sites_[layer]),
            tensor(b_.attended, {all_rows, {0, n_q}})));
    unfinished_ = false;  // its threads wait for each other, at its start and at its end
  }

  // From here on only the rows whose logits are wanted. Returns their attention.
  ActivationRows keep_wanted_rows() {
    const Range all_rows{0, r_.n_rows};
    ggml_tensor* x = tensor(r_.x, {all_rows, {0, h_.n_embd}});
    ggml_tensor* attended = tensor(b_.attended, {all_rows, {0, b_.attended.cols}});
    use(b_.wanted);
    if (rows_.size() > 0) {
      ggml_tensor* wanted = indices(b_.logit_rows, rows_);
      add(put(ggml_get_rows(c_, x, wanted), tensor(r_.x)));
      add(put(ggml_get_rows(c_, attended, wanted), tensor(b_.wanted_attended)));
    }
    unfinished_ = many_;
    return b_.wanted_attended;
  }

  // x += y, after a norm of its own.
  void add_residual(ggml_tensor* norm_weight) {
    if (!many_) synchronize();
    // With few rows y is shared, but each thread needs all of it, normed: in its own h.
    const ActivationRows& y = norm_weight != nullptr ? r_.h : r_.y;
    if (norm_weight != nullptr) norm(r_.y, norm_weight, y);
    ggml_tensor* x = tensor(r_.x);
    add(put(ggml_add(c_, tensor(y), x), x));
  }

  void project_attended(const LayerWeights& w, const ActivationRows& attended) {
    multiply(w.attn_out, w.attn_out_bias, attended, r_.y, my_outputs(h_.n_embd));
    add_residual(w.attn_post_norm);
  }

  void feed_forward(const LayerWeights& w) {
    norm(r_.x, w.ffn_norm, r_.h);
    activate(w);
    multiply(w.down, w.down_bias, b_.gate, r_.y, my_outputs(h_.n_embd));
    add_residual(w.ffn_post_norm);
  }

  // gate = activation(gate) * up.
  void activate(const LayerWeights& w) {
    const ggml_glu_op op =
        h_.architecture->activation == Activation::gelu ? GGML_GLU_OP_GEGLU : GGML_GLU_OP_SWIGLU;
    const Range outputs = my_outputs(h_.n_ff);
    const Block block{rows_, outputs};
    if (w.gate != nullptr) {
      multiply(w.gate, w.gate_bias, r_.h, b_.gate, outputs);
      multiply(w.up, w.up_bias, r_.h, b_.up, outputs);
    } else {  // one weight holds both
      multiply(w.up, w.up_bias, r_.h, b_.gate, outputs);
      multiply(w.up, w.up_bias, r_.h, b_.up, {h_.n_ff + outputs.first, h_.n_ff + outputs.end}, -h_.n_ff);
    }
    if (!block.empty()) {
      ggml_tensor* gate = tensor(b_.gate, block);
      add(put(ggml_glu_split(c_, gate, tensor(b_.up, block), op), gate));
    }
    unfinished_ = true;
  }

  void logits() {
    const Range outputs = my_outputs(h_.n_vocab);
    norm(r_.x, w_.output_norm(), r_.h);
    multiply(w_.output(), w_.output_bias(), r_.h, b_.logits, outputs);
    if (h_.logit_softcap <= 0) return;
    if (many_) return cap({rows_, outputs});
    for (int row = 0; row < r_.n_rows; ++row)
      cap({{row, row + 1}, outputs});  // ggml scales contiguous values
  }

  // Logits y become cap tanh(y / cap).
  void cap(const Block& block) {
    if (block.empty()) return;
    ggml_tensor* y = tensor(b_.logits, block);
    ggml_tensor* scaled = put(ggml_scale(c_, y, 1 / h_.logit_softcap), y);
    add(put(ggml_scale(c_, put(ggml_tanh(c_, scaled), y), h_.logit_softcap), y));
  }

  GraphPart& part_;
  const Hparams& h_;
  const Weights& w_;
  MatrixProduct& product_;
  const GraphBuffers& b_;
  ggml_context* c_;
  ResidualRows r_;           // in use
  bool many_ = false;        // rows: each thread takes some; else each computes all
  Range rows_;               // of this thread
  bool unfinished_ = false;  // whether other threads may still be writing what was computed last
};

GraphPart::GraphPart(const GraphParts& parts, int thread, const GraphBuffers& buffers)
    : parts_(parts), thread_(thread), sites_(parts.hparams.n_layers) {
  const std::size_t n_tensors = (parts.hparams.n_layers + 2) * kTensorsPerLayer;
  context_ =
      ggml_init({n_tensors * ggml_tensor_overhead() + ggml_graph_overhead_custom(n_tensors, false), nullptr,
                 /*no_alloc=*/true});
  KVANT_CHECK(context_ != nullptr, "no memory for a graph's description");
  graph_ = ggml_new_graph_custom(context_, n_tensors, false);
  Builder(*this, buffers).run();
}

GraphPart::~GraphPart() {
  if (context_ != nullptr) ggml_free(context_);
}

void GraphPart::barrier_op(ggml_tensor*, int, int, void* part) {
  static_cast<const GraphPart*>(part)->team().barrier();
}

void GraphPart::attention_op(ggml_tensor* out, int, int, void* data) {
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
  Team team = site.part->team();
  (*site.part->parts_.call.attention)(site.layer, rows, team);
}

}  // namespace kvant
