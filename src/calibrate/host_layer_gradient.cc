#include "calibrate/host_layer_gradient.h"

#include <algorithm>
#include <span>

#include "base/check.h"
#include "calibrate/principal_directions.h"

namespace kvant {
namespace {

MatrixView<float> allocated(std::vector<float>& values, int rows, int cols) {
  values.resize(static_cast<std::size_t>(rows) * cols);
  return {values.data(), rows, cols};
}

void add(MatrixView<const float> x, float scale, MatrixView<float> to) {
  for (int r = 0; r < x.rows; ++r)
    for (int i = 0; i < x.cols; ++i) to.row(r)[i] += scale * x.row(r)[i];
}

void copy(MatrixView<const float> from, float scale, MatrixView<float> to) {
  for (int r = 0; r < from.rows; ++r)
    for (int i = 0; i < from.cols; ++i) to.row(r)[i] = scale * from.row(r)[i];
}

MatrixView<float> columns(MatrixView<float> x, int first, int n) {
  return {x.data + first, x.rows, n, x.stride};
}

GatedUnit unit_of(Activation activation) {
  switch (activation) {
    case Activation::silu:
      return GatedUnit::silu;
    case Activation::gelu:
      return GatedUnit::gelu;
    case Activation::relu_squared:
      return GatedUnit::relu_squared;
    case Activation::clipped_silu:
      break;
  }
  KVANT_CHECK(false, "an activation without a derivative");
  return {};
}

}  // namespace

std::int64_t activation_bytes(const Hparams& hparams, int n_rows) {
  const std::int64_t n_q = hparams.n_heads * hparams.head_dim, n_kv = hparams.n_kv_heads * hparams.head_dim;
  const LayerProgram& program = hparams.architecture->layer;
  std::int64_t of_row = n_q + 2 * n_kv + n_q + 2 * hparams.n_ff;
  if (find_step<NormHeads>(program.attention) != nullptr) of_row += n_q + 2 * n_kv;
  for (const LayerSteps& steps : {program.back, program.network}) {
    for (const LayerStep& step : steps)
      if (std::holds_alternative<Norm>(step)) of_row += hparams.n_embd;
  }
  return of_row * n_rows * static_cast<std::int64_t>(sizeof(float));
}

// Walker turns a layer's steps into operations.
class HostLayerGradient::Walker {
 public:
  explicit Walker(HostLayerGradient& of)
      : g_(of), h_(of.h_), w_(of.w_), work_(of.work_), a_(of.a_), x_(value(h_.n_embd, nullptr, nullptr)) {}

  void walk_layer() {
    walk(h_.steps_to_attention(g_.layer_), *this);
    for (const LayerSteps& steps : h_.steps_after_attention(/*has_experts=*/false)) walk(steps, *this);
    a_.saved.resize(n_saved_);
  }

  void run(const Norm& step) {
    const std::span<const float> weight = w_.of(step.weights.weight);
    if (weight.empty()) return;
    const std::span<const float> bias =
        step.weights.bias == nullptr ? std::span<const float>{} : w_.of(step.weights.bias);
    Value* from = rows(step.from);
    Value* to = from;
    if (step.to == RowSet::h) to = normed_ = value(h_.n_embd, &work_.normed, &work_.normed);
    // The caller of the backward pass supplies the layer's input, so the input is not saved.
    const bool of_input = from == x_ && n_sums_ == 0;
    const int saved = of_input ? -1 : save(h_.n_embd);
    HostLayerGradient& g = g_;
    Operation& o = operation(of_input ? nullptr : from);
    o.is_read_back = !of_input;
    o.forward = [=, this_norm = norm(), &g](int b) {
      if (saved >= 0) copy(g.value(*from, b), 1, g.rows(g.a_.saved[saved], from->n_cols, b));
      this_norm.run(g.value(*from, b), weight, bias, g.value(*to, b));
    };
    o.back = [=, this_norm = norm(), &g](int b) {
      const MatrixView<float> gradient = g.gradient(*to, b);
      const MatrixView<const float> x =
          saved >= 0 ? g.rows(g.a_.saved[saved], from->n_cols, b) : g.part(g.x_before_, b);
      this_norm.run_back(x, weight, gradient);
      if (from != to) add(gradient, 1, g.gradient(*from, b));
    };
  }

  void run(const ProjectHeads& step) {
    qkv_ = value(g_.n_qkv(), &a_.qkv, &work_.qkv_gradient);
    multiply(*rows(step.from), *qkv_, w_.qkv, w_.qkv_bias);
  }

  void run(const NormHeads& step) {
    if (w_.q_norm.empty() && w_.k_norm.empty()) return;
    const int saved = save(qkv_->n_cols);
    HostLayerGradient& g = g_;
    Operation& o = operation(nullptr);
    o.is_read_back = true;
    // Calls of(first, n, weight) for the columns [first, first + n) of q or k that share a norm. `weight`
    // holds the norm's weights.
    const auto each = [&g, of_rows = step.of_rows](const auto& of) {
      const int d = g.h_.head_dim;
      for (const bool query : {true, false}) {
        const std::span<const float> norm = query ? g.w_.q_norm : g.w_.k_norm;
        const int first = query ? 0 : g.n_q(), n = query ? g.n_q() : g.n_kv();
        if (norm.empty()) continue;
        if (of_rows) {
          of(first, n, norm);
        } else {
          const bool by_head = std::ssize(norm) == n && n > d;  // each head has weights of its own
          for (int i = 0; i < n; i += d) of(first + i, d, norm.subspan(by_head ? i : 0, d));
        }
      }
    };
    Value* qkv = qkv_;
    o.forward = [=, this_norm = norm(), &g](int b) {
      const MatrixView<float> x = g.value(*qkv, b);
      copy(x, 1, g.rows(g.a_.saved[saved], qkv->n_cols, b));
      each([&](int first, int n, std::span<const float> weight) {
        this_norm.run(columns(x, first, n), weight, {}, columns(x, first, n));
      });
    };
    o.back = [=, this_norm = norm(), &g](int b) {
      const MatrixView<float> x = g.rows(g.a_.saved[saved], qkv->n_cols, b), dx = g.gradient(*qkv, b);
      each([&](int first, int n, std::span<const float> weight) {
        this_norm.run_back(columns(x, first, n), weight, columns(dx, first, n));
      });
    };
  }

  void run(const TurnHeads&) {
    if (!h_.rotated[g_.layer_]) return;
    HostLayerGradient& g = g_;
    Value* qkv = qkv_;
    Operation& o = operation(nullptr);
    const auto each = [&g](MatrixView<float> x, int b, const auto& turn) {
      for (int i = 0; i < g.n_q() + g.n_kv(); i += g.h_.head_dim)
        for (int r = 0; r < x.rows; ++r) turn(b * kPageTokens + r, x.row(r) + i);
    };
    o.forward = [=, &g](int b) {
      each(g.value(*qkv, b), b, [&](int row, float* x) { g.rope_.turn(row, x); });
    };
    o.back = [=, &g](int b) {
      each(g.gradient(*qkv, b), b, [&](int row, float* x) { g.rope_.turn_back(row, x); });
    };
  }

  void run(const Attend&) {
    attended_ = value(g_.n_q(), &a_.attended, &work_.attended_gradient);
    HostLayerGradient& g = g_;
    Operation& o = operation(qkv_);
    o.is_read_back = true;
    o.forward_all = [&g](Team& team) { g.attend(team); };
    o.back_all = [&g](Team& team) { g.attend_back(team); };
  }

  void run(const ProjectBack&) {
    y_ = value(h_.n_embd, &work_.y, &work_.y);
    multiply(*attended_, *y_, w_.attn_out, w_.out_bias);
  }

  void run(const Add& step) {
    KVANT_CHECK(step.from == RowSet::y && step.to == RowSet::x, "rows without a derivative");
    ++n_sums_;
    HostLayerGradient& g = g_;
    Value *y = y_, *x = x_;
    Operation& o = operation(y);
    o.forward = [=, &g](int b) { add(g.value(*y, b), g.h_.residual_scale, g.value(*x, b)); };
    o.back = [=, &g](int b) { copy(g.gradient(*x, b), g.h_.residual_scale, g.gradient(*y, b)); };
  }

  void run(const RunNetwork& step) {
    KVANT_CHECK(step.to == RowSet::y, "rows without a derivative");
    const NetworkUnit& unit = h_.architecture->unit;
    const GatedUnit kind = unit_of(unit.activation);
    Value& in = *rows(step.from);
    // The gradients by gate and up overwrite gate and up.
    Value *gate = nullptr, *up = value(h_.n_ff, &a_.up, &a_.up);
    Value* product = value(h_.n_ff, &work_.product, &work_.product);
    if (!unit.ungated) {
      gate = value(h_.n_ff, &a_.gate, &a_.gate);
      begin_network(multiply(in, *gate, w_.gate, w_.gate_bias));
    }
    begin_network(multiply(in, *up, w_.up, w_.up_bias));
    HostLayerGradient& g = g_;
    Operation& o = operation(up);
    o.forward = [=, &g](int b) {
      const MatrixView<float> x = g.value(*up, b), out = g.value(*product, b);
      gate != nullptr ? gated_unit(kind, g.value(*gate, b), x, out) : gated_unit(kind, x, {}, out);
    };
    o.back = [=, &g](int b) {
      const MatrixView<float> gradient = g.gradient(*product, b), x = g.value(*up, b);
      gate != nullptr ? gated_unit_back(kind, gradient, g.value(*gate, b), x)
                      : gated_unit_back(kind, gradient, x, {});
    };
    y_ = value(h_.n_embd, &work_.y, &work_.y);
    multiply(*product, *y_, w_.down, w_.down_bias);
  }

  void run(const TemperQueries&) { KVANT_CHECK(h_.temperature == 0, "a step without a derivative"); }
  void run(const ScaleLayer&) { KVANT_CHECK(false, "a step without a derivative"); }
  // has_known_layers() refuses models with such steps.
  template <class Other>
  requires(one_of<Other, NormValues, RunDeltaNet, GateHeads, RouteRows, RunExperts, ScaleByWidth,
                  ReadLayerInput>) void run(const Other&) {
    KVANT_CHECK(false, "a step without a derivative");
  }

 private:
  RowNorm norm() const { return {h_.architecture->layer_norm, h_.norm_epsilon}; }

  Value* value(int n_cols, std::vector<float>* values, std::vector<float>* gradient) {
    const auto size = static_cast<std::size_t>(g_.n_rows_) * n_cols;
    for (std::vector<float>* memory : {values, gradient})
      if (memory != nullptr) memory->resize(size);
    return &g_.values_.emplace_back(Value{n_cols, values, gradient});
  }
  Value* rows(RowSet which) const {
    Value* const all[] = {x_, normed_, y_, nullptr};
    return all[static_cast<int>(which)];
  }
  int save(int n_cols) {
    if (static_cast<int>(a_.saved.size()) <= n_saved_) a_.saved.emplace_back();
    a_.saved[n_saved_].resize(static_cast<std::size_t>(g_.n_rows_) * n_cols);
    return n_saved_++;
  }

  Operation& operation(Value* reads) {
    if (reads != nullptr) reads->last_reader = static_cast<int>(g_.operations_.size());
    return g_.operations_.emplace_back();
  }

  // Adds the operation out = in W^T + bias with W [n_out, n_in].
  Operation& multiply(Value& in, Value& out, const std::vector<float>& weight,
                      const std::vector<float>& bias) {
    const auto index = static_cast<int>(g_.operations_.size());
    HostLayerGradient& g = g_;
    Operation& o = operation(&in);
    o.forward_by = {in.n_cols, out.n_cols, transposed(weight.data(), in.n_cols)};
    o.back_by = {out.n_cols, in.n_cols, row_major(weight.data(), in.n_cols), work_.precision};
    o.forward = [&g, &in, &out, &bias](int b) {
      linear(g.value(in, b), g.work_.weight, bias, g.value(out, b));
    };
    o.back = [&g, &in, &out, index](int b) {
      const bool accumulates = in.gradient == nullptr || in.last_reader != index;
      linear_back(g.gradient(out, b), g.work_.weight, accumulates, g.gradient(in, b));
    };
    return o;
  }
  static void begin_network(Operation& product) { product.is_read_back = product.of_network = true; }

  HostLayerGradient& g_;
  const Hparams& h_;
  const F32Layer& w_;
  LayerWorkspace& work_;
  LayerActivations& a_;
  Value *x_, *normed_ = nullptr, *y_ = nullptr, *qkv_ = nullptr, *attended_ = nullptr;
  int n_sums_ = 0;  // the number of blocks that were added to x_ so far
  int n_saved_ = 0;
};

HostLayerGradient::HostLayerGradient(const Hparams& hparams, int layer, const F32Layer& weights,
                                     const RopeTable& rope, int n_rows, LayerWorkspace& workspace,
                                     LayerActivations* kept)
    : h_(hparams),
      layer_(layer),
      w_(weights),
      rope_(rope),
      n_rows_(n_rows),
      shape_(attention_shape(hparams, layer)),
      work_(workspace),
      keeps_(kept != nullptr),
      a_(keeps_ ? *kept : workspace.activations) {
  Walker(*this).walk_layer();
}

MatrixView<const float> HostLayerGradient::qkv_head(int head) const {
  return {a_.qkv.data() + static_cast<std::ptrdiff_t>(head) * h_.head_dim, n_rows_, h_.head_dim, n_qkv()};
}

MatrixView<const float> HostLayerGradient::stored(int kv_head, Side side) const {
  return qkv_head(h_.n_heads + (side == Side::value ? h_.n_kv_heads : 0) + kv_head);
}

HeadAttention HostLayerGradient::attention(int head) const {
  const int kv_head = head / (h_.n_heads / h_.n_kv_heads);
  return {shape_, qkv_head(head), stored(kv_head, Side::key), stored(kv_head, Side::value)};
}

MatrixView<const float> HostLayerGradient::output_gradient(int head) const {
  return {work_.attended_gradient.data() + static_cast<std::ptrdiff_t>(head) * h_.head_dim, n_rows_,
          h_.head_dim, n_q()};
}

KvGradients HostLayerGradient::kv_gradients(int head) {
  const std::ptrdiff_t size = static_cast<std::ptrdiff_t>(n_rows_) * h_.head_dim;
  float* first = work_.head_gradients.data() + 2 * size * head;
  return {{first, n_rows_, h_.head_dim},
          {first + size, n_rows_, h_.head_dim},
          work_.score_weights.data() + static_cast<std::ptrdiff_t>(head) * n_rows_};
}

std::vector<double> HostLayerGradient::query_moments(int kv_head) const {
  const int group = h_.n_heads / h_.n_kv_heads;
  std::vector<double> sums(static_cast<std::size_t>(h_.head_dim) * h_.head_dim, 0.0);
  for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    const auto weights =
        std::span(work_.score_weights).subspan(static_cast<std::size_t>(head) * n_rows_, n_rows_);
    std::vector<float> memory;
    const MatrixView<float> unturned = allocated(memory, n_rows_, h_.head_dim);
    for (int r = 0; r < n_rows_; ++r) {
      std::copy_n(qkv_head(head).row(r), h_.head_dim, unturned.row(r));
      if (h_.rotated[layer_]) rope_.turn_back(r, unturned.row(r));
    }
    const std::vector<double> of_head = second_moments(unturned, weights);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += of_head[i];
  }
  return sums;
}

// The functions from multiply_by() to backward() run the operations.

// Packs the weight into work_.weight and runs body(block) for all blocks of rows.
template <class Body>
void HostLayerGradient::multiply_by(const Multiplier& by, Team& team, const Body& body) {
  team.once([&] { work_.weight.resize(by.n_in, by.n_out, by.precision); });
  team.for_each(work_.weight.n_parts(), [&](int i) { work_.weight.pack(by.b, i); });
  team.for_each(n_blocks(), body);
}

// Runs operations in passes over the blocks of rows. A pass contains at most one product and the operations
// around this product. The pass ends before the next product and before an operation on all rows. A block's
// rows therefore stay in the processor's cache.
void HostLayerGradient::run(Team& team, bool back, int n_operations, bool again) {
  std::vector<const std::function<void(int)>*> pass;
  Multiplier by;
  const auto finish = [&] {
    const auto body = [&](int block) {
      for (const auto* operation : pass) (*operation)(block);
    };
    if (by.n_in > 0)
      multiply_by(by, team, body);
    else if (!pass.empty())
      team.for_each(n_blocks(), body);
    pass.clear();
    by = {};
  };
  for (int i = 0; i < n_operations; ++i) {
    const Operation& o = operations_[back ? n_operations - 1 - i : i];
    if (o.forward_all) {
      finish();
      (back ? o.back_all : o.forward_all)(team);
      continue;
    }
    const Multiplier& next = back ? o.back_by : o.forward_by;
    if (next.n_in > 0 && by.n_in > 0) finish();
    if (next.n_in > 0) by = next;
    if (next.n_in > 0 && again && o.of_network) by.precision = work_.precision;
    pass.push_back(back ? &o.back : &o.forward);
  }
  finish();
}

void HostLayerGradient::attend(Team& team) {
  team.for_each(h_.n_heads * n_blocks(), [&](int item) {
    const int head = item % h_.n_heads, block = n_blocks() - 1 - item / h_.n_heads;  // the longest come first
    attention(head).attend(block, columns(rows(a_.attended, n_q(), block), head * h_.head_dim, h_.head_dim));
  });
}

// Sums the gradients by K and V over the query heads that share them. The sums have the order of the heads,
// so the result does not depend on threads.
void HostLayerGradient::sum_group(int kv_head, int block) {
  const int group = h_.n_heads / h_.n_kv_heads;
  const int n_cols = n_qkv();
  for (const Side side : kSides) {
    for (int r = block * kPageTokens; r < block * kPageTokens + block_rows(block); ++r) {
      float* sum = work_.qkv_gradient.data() + static_cast<std::ptrdiff_t>(r) * n_cols + n_q() +
                   static_cast<int>(side) * n_kv() + kv_head * h_.head_dim;
      std::fill_n(sum, h_.head_dim, 0.0F);
      for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        const KvGradients g = kv_gradients(head);
        const float* from = (side == Side::key ? g.k : g.v).row(r);
        for (int i = 0; i < h_.head_dim; ++i) sum[i] += from[i];
      }
    }
  }
}

void HostLayerGradient::attend_back(Team& team) {
  team.once([&] {
    work_.score_weights.resize(static_cast<std::size_t>(h_.n_heads) * n_rows_);
    work_.head_gradients.assign(static_cast<std::size_t>(2) * h_.n_heads * n_rows_ * h_.head_dim, 0.0F);
  });
  team.for_each(h_.n_heads, [&](int head) {
    HeadAttention of_head = attention(head);
    const int first = head * h_.head_dim;
    for (int b = 0; b < n_blocks(); ++b)
      of_head.attend_back(b, columns(rows(work_.attended_gradient, n_q(), b), first, h_.head_dim),
                          columns(rows(work_.qkv_gradient, n_qkv(), b), first, h_.head_dim),
                          kv_gradients(head));
  });
  team.for_each(h_.n_kv_heads * n_blocks(),
                [&](int item) { sum_group(item % h_.n_kv_heads, item / h_.n_kv_heads); });
}

void HostLayerGradient::forward(MatrixView<float> x, Team& team) {
  team.once([&] { x_ = x; });
  run(team, /*back=*/false, static_cast<int>(operations_.size()), /*again=*/false);
  team.once([&] { a_.complete = keeps_; });
}

void HostLayerGradient::backward(MatrixView<const float> x, MatrixView<float> gradient, Team& team) {
  const auto n = static_cast<int>(operations_.size());
  team.once([&] {
    x_before_ = x;
    gradient_ = gradient;
    if (a_.complete) return;
    x_ = allocated(work_.x, n_rows_, h_.n_embd);
    copy(x, 1, x_);
  });
  if (!a_.complete) {
    int n_read = n;
    while (!operations_[n_read - 1].is_read_back) --n_read;
    run(team, /*back=*/false, n_read, /*again=*/true);
  }
  run(team, /*back=*/true, n, /*again=*/false);
  team.once([&] { a_.complete = false; });
}

}  // namespace kvant
