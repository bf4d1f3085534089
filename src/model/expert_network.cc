#include "model/expert_network.h"

#include <ggml-cpu.h>
#include <ggml.h>

#include <algorithm>
#include <cmath>
#include <new>

#include "base/gemm.h"
#include "model/expert_routing.h"
#include "model/gated_sigmoid.h"
#include "model/matrix_product.h"

namespace kvant {
namespace {

constexpr int kFewOutputs = 32;   // weight rows in one piece of work, if there are few rows
constexpr int kManyOutputs = 96;  // weight rows in one piece of work, if there are many rows
constexpr int kItemRows = 512;    // rows of activations in one piece of work

float dot(const float* a, const float* b, int n) {
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// Computes GELU in the tanh form of Hendrycks and Gimpel 2016, x_i <- x_i / 2 (1 + tanh(sqrt(2 / pi) (x_i +
// 0.044715 x_i^3))). That equals x_i times the sigmoid of twice the argument of tanh.
void gelu(float* x, int n) {
  constexpr float kSlope = 1.5957691216F, kCubic = 0.044715F;
  constexpr int kBlock = 64;
  float angle[kBlock], e[kBlock];
  for (int first = 0; first < n; first += kBlock) {
    const int m = std::min(kBlock, n - first);
    float* y = x + first;
    for (int i = 0; i < m; ++i) angle[i] = kSlope * y[i] * (1 + kCubic * y[i] * y[i]);
    for (int i = 0; i < m; ++i) e[i] = -std::abs(angle[i]);
    exp_row(e, m, 0);
    for (int i = 0; i < m; ++i) y[i] *= (angle[i] >= 0 ? 1 : e[i]) / (1 + e[i]);
  }
}

// Computes gate <- activation(gate) * up.
void activate(Activation activation, float* gate, float* up, int n) {
  if (activation == Activation::silu) {
    gated_sigmoid(gate, n, 1);
    for (int i = 0; i < n; ++i) gate[i] *= up[i];
    return;
  }
  if (activation == Activation::gelu) {
    gelu(gate, n);
    for (int i = 0; i < n; ++i) gate[i] *= up[i];
    return;
  }
  KVANT_CHECK(activation == Activation::clipped_silu, "experts with an activation that they don't have");
  constexpr float kLimit = 7, kSlope = 1.702F;  // gpt-oss's constants
  for (int i = 0; i < n; ++i) gate[i] = std::min(gate[i], kLimit);
  gated_sigmoid(gate, n, kSlope);
  for (int i = 0; i < n; ++i) gate[i] *= std::clamp(up[i], -kLimit, kLimit) + 1;
}

// Matrix is one of n matrices [n_in, n_out] with its bias. With `first`, Matrix begins at output `first`.
struct Matrix {
  const ggml_tensor* weight;
  const float* bias;  // may be null
  int expert;
  int first = 0;
  int n_in() const { return static_cast<int>(weight->ne[0]); }
  const char* row(int output) const {
    return static_cast<const char*>(weight->data) + expert * weight->nb[2] + (first + output) * weight->nb[1];
  }
  float bias_of(int output) const { return bias == nullptr ? 0.0F : bias[output]; }
};

Matrix matrix_of(const ggml_tensor* weight, const ggml_tensor* bias, int expert) {
  return {weight, bias == nullptr ? nullptr : static_cast<const float*>(bias->data) + expert * bias->ne[0],
          expert};
}

// Operands holds F32 rows in the form that the dot products of a weight type read.
class Operands {
 public:
  // Converts `rows` into `memory` if the weight type needs a different form than F32.
  Operands(ggml_type weights, MatrixView<const float> rows, std::vector<std::uint8_t>& memory)
      : traits_(ggml_get_type_traits_cpu(weights)), n_(rows.cols) {
    bytes_ = ggml_row_size(traits_->vec_dot_type, n_);
    if (traits_->vec_dot_type == GGML_TYPE_F32) {
      first_ = reinterpret_cast<const std::uint8_t*>(rows.data);
      bytes_ = rows.stride * sizeof(float);
      return;
    }
    memory.resize(std::max(memory.size(), rows.rows * bytes_));
    const auto convert = ggml_get_type_traits_cpu(traits_->vec_dot_type)->from_float;
    for (int r = 0; r < rows.rows; ++r) convert(rows.row(r), memory.data() + r * bytes_, n_);
    first_ = memory.data();
  }

  // Returns these operands' rows in the form that weights of type `weights` need. If the form differs from
  // the present form, the rows are converted into `memory`.
  Operands also_for(ggml_type weights, MatrixView<const float> rows,
                    std::vector<std::uint8_t>& memory) const {
    const ggml_type_traits_cpu* traits = ggml_get_type_traits_cpu(weights);
    if (traits->vec_dot_type != traits_->vec_dot_type) return {weights, rows, memory};
    Operands same = *this;
    same.traits_ = traits;
    return same;
  }

  float dot(const char* weight_row, int row) const {
    float result = 0;
    traits_->vec_dot(n_, &result, 0, weight_row, 0, first_ + row * bytes_, 0, 1);
    return result;
  }

 private:
  const ggml_type_traits_cpu* traits_;
  int n_;
  std::size_t bytes_;
  const std::uint8_t* first_;
};

// Computes c [m, n] = a [m, n_in] times outputs [first, first + n) of the matrix, plus its bias. c has
// c_stride values per row.
void multiply(const Matrix& matrix, int first, int n, const float* a, int m, std::vector<float>& scratch,
              float* c, std::ptrdiff_t c_stride) {
  const int n_in = matrix.n_in();
  const auto* w = reinterpret_cast<const float*>(matrix.row(first));
  if (matrix.weight->type != GGML_TYPE_F32) {
    scratch.resize(std::max(scratch.size(), static_cast<std::size_t>(n) * n_in));
    const auto to_float = ggml_get_type_traits(matrix.weight->type)->to_float;
    for (int o = 0; o < n; ++o)
      to_float(matrix.row(first + o), scratch.data() + static_cast<std::ptrdiff_t>(o) * n_in, n_in);
    w = scratch.data();
  }
  gemm(m, n, n_in, row_major(a, n_in), transposed(w, n_in), /*accumulate=*/false, c, c_stride);
  if (matrix.bias == nullptr) return;
  for (int r = 0; r < m; ++r) {
    for (int o = 0; o < n; ++o) c[r * c_stride + o] += matrix.bias[first + o];
  }
}

int blocks(int n, int size) {
  return (n + size - 1) / size;
}

}  // namespace

// Layer runs one layer on one thread.
class ExpertNetwork::Layer {
 public:
  Layer(ExpertNetwork& network, const LayerWeights& weights, const ExpertRows& rows, Team& team)
      : n_(network),
        w_(weights),
        rows_(rows),
        team_(team),
        scratch_(network.scratch_[team.index()]),
        n_pairs_(rows.x.rows * network.rules_.n_used) {}

  void few() {
    hide_few();
    const Operands hidden(w_.experts.down->type, {n_.hidden_.data(), n_pairs_, n_.rules_.n_ff},
                          scratch_.quantized);
    team_.for_each(blocks(n_.n_embd_, kFewOutputs), [&](int block) {
      for (int o = block * kFewOutputs; o < std::min(n_.n_embd_, (block + 1) * kFewOutputs); ++o) {
        for (int r = 0; r < rows_.y.rows; ++r) {
          rows_.y.row(r)[o] = mix(r, o, [&](int slot, int pair) {
            const Matrix down = down_of(n_.ids_[r * n_.rules_.n_used + slot]);
            return hidden.dot(down.row(o), pair) + down.bias_of(o);
          });
        }
      }
    });
  }

  void many() {
    gather();
    hide_many();
    const int n_blocks = blocks(n_.n_embd_, kManyOutputs);
    team_.for_each(n_items() * n_blocks, [&](int item) {
      const Run run = item_run(item / n_blocks);
      const int first = item % n_blocks * kManyOutputs;
      multiply(down_of(run.expert), first, std::min(kManyOutputs, n_.n_embd_ - first), hidden(run.first),
               run.n, scratch_.weights, out(run.first) + first, n_.n_embd_);
    });
    team_.for_each(rows_.y.rows, [&](int r) {
      for (int o = 0; o < n_.n_embd_; ++o)
        rows_.y.row(r)[o] = mix(r, o, [&](int, int pair) { return out(pair)[o]; });
    });
  }

 private:
  // Returns whether `up` holds both gate and up. The gate's outputs come first.
  bool fused() const { return w_.experts.gate == nullptr; }
  const ggml_tensor* gate_weight() const { return fused() ? w_.experts.up : w_.experts.gate; }
  Matrix gate_of(int expert) const { return matrix_of(gate_weight(), w_.experts.gate_bias, expert); }
  Matrix up_of(int expert) const {
    Matrix up = matrix_of(w_.experts.up, w_.experts.up_bias, expert);
    if (fused()) up.first = n_.rules_.n_ff;
    return up;
  }
  Matrix down_of(int expert) const { return matrix_of(w_.experts.down, w_.experts.down_bias, expert); }
  float* hidden(int pair) const {
    return n_.hidden_.data() + static_cast<std::ptrdiff_t>(pair) * n_.rules_.n_ff;
  }
  float* out(int pair) const { return n_.out_.data() + static_cast<std::ptrdiff_t>(pair) * n_.n_embd_; }

  // Returns output o of row r, where of(slot, pair) returns output o of one of the row's experts.
  template <class Of>
  float mix(int r, int o, const Of& of) const {
    float sum = rows_.shared.cols > 0 ? n_.shared_weights_[r] * rows_.shared.row(r)[o] : 0.0F;
    for (int slot = 0; slot < n_.rules_.n_used; ++slot) {
      const int i = r * n_.rules_.n_used + slot;
      sum += n_.weights_[i] * of(slot, n_.pair_of_[i]);
    }
    return sum;
  }

  void hide_few() {
    // A file may store gate and up in different types.
    const Operands for_up(w_.experts.up->type, rows_.x, scratch_.quantized);
    const Operands for_gate = for_up.also_for(gate_weight()->type, rows_.x, scratch_.quantized_for_gate);
    const int n_blocks = blocks(n_.rules_.n_ff, kFewOutputs);
    team_.for_each(static_cast<int>(n_.runs_.size()) * n_blocks, [&](int item) {
      const Run run = n_.runs_[item / n_blocks];
      const Matrix gate = gate_of(run.expert), up = up_of(run.expert);
      const int first = item % n_blocks * kFewOutputs, n = std::min(kFewOutputs, n_.rules_.n_ff - first);
      float ups[kFewOutputs];
      for (int pair = run.first; pair < run.first + run.n; ++pair) {
        float* to = hidden(pair) + first;
        for (int o = 0; o < n; ++o) {
          to[o] = for_gate.dot(gate.row(first + o), n_.row_of_[pair]) + gate.bias_of(first + o);
          ups[o] = for_up.dot(up.row(first + o), n_.row_of_[pair]) + up.bias_of(first + o);
        }
        activate(n_.activation_, to, ups, n);
      }
    });
  }

  // Copies the rows of x in the order of pairs. The code does not read x afterwards, so y may use the same
  // memory.
  void gather() {
    team_.for_each(n_pairs_, [&](int pair) {
      const float* from = rows_.x.row(n_.row_of_[pair]);
      std::copy(from, from + n_.n_embd_, n_.x_.data() + static_cast<std::ptrdiff_t>(pair) * n_.n_embd_);
    });
  }

  void hide_many() {
    const int n_ff = n_.rules_.n_ff, n_blocks = blocks(n_ff, kManyOutputs);
    team_.for_each(n_items() * n_blocks, [&](int item) {
      const Run run = item_run(item / n_blocks);
      const int first = item % n_blocks * kManyOutputs, n = std::min(kManyOutputs, n_ff - first);
      const float* x = n_.x_.data() + static_cast<std::ptrdiff_t>(run.first) * n_.n_embd_;
      multiply(gate_of(run.expert), first, n, x, run.n, scratch_.weights, hidden(run.first) + first, n_ff);
      multiply(up_of(run.expert), first, n, x, run.n, scratch_.weights, scratch_.up.data(), n);
      for (int r = 0; r < run.n; ++r)
        activate(n_.activation_, hidden(run.first + r) + first,
                 scratch_.up.data() + static_cast<std::ptrdiff_t>(r) * n, n);
    });
  }

  // Each run is split into items of kItemRows rows.
  int n_items() const {
    int n = 0;
    for (const Run& run : n_.runs_) n += blocks(run.n, kItemRows);
    return n;
  }
  Run item_run(int item) const {
    for (const Run& run : n_.runs_) {
      const int n = blocks(run.n, kItemRows);
      if (item < n)
        return {run.expert, run.first + item * kItemRows, std::min(kItemRows, run.n - item * kItemRows)};
      item -= n;
    }
    return {};
  }

  ExpertNetwork& n_;
  const LayerWeights& w_;
  const ExpertRows& rows_;
  Team& team_;
  Scratch& scratch_;
  int n_pairs_;
};

ExpertNetwork::ExpertNetwork(const Hparams& hparams, int n_threads)
    : rules_(hparams.experts),
      activation_(hparams.architecture->unit.activation),
      n_embd_(hparams.n_embd),
      scratch_(n_threads) {
  ggml_cpu_init();  // this initializes the tables of ggml's dot products
}

bool ExpertNetwork::reserve(int n_rows) {
  if (rules_.n == 0) return true;
  const std::size_t pairs = static_cast<std::size_t>(n_rows) * rules_.n_used;
  const auto grow = [](auto& values, std::size_t n) { values.resize(std::max(values.size(), n)); };
  const std::size_t widest = std::max(rules_.n_ff, n_embd_);
  try {
    grow(ids_, pairs), grow(weights_, pairs), grow(pair_of_, pairs), grow(row_of_, pairs);
    grow(counts_, rules_.n), grow(shared_weights_, n_rows), grow(hidden_, pairs * rules_.n_ff);
    runs_.reserve(rules_.n);
    if (MatrixProduct::is_batch(n_rows)) grow(x_, pairs * n_embd_), grow(out_, pairs * n_embd_);
    for (Scratch& s : scratch_) {
      // F32 is the largest form into which rows are converted.
      grow(s.quantized,
           std::min<std::size_t>(pairs, MatrixProduct::kGemmRows * rules_.n_used) * widest * sizeof(float));
      grow(s.quantized_for_gate,
           std::min<std::size_t>(n_rows, MatrixProduct::kGemmRows) * n_embd_ * sizeof(float));
      grow(s.weights, kManyOutputs * widest);
      grow(s.up, static_cast<std::size_t>(kItemRows) * kManyOutputs);
    }
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

// Chooses the experts of all rows, and sorts the pairs by expert.
void ExpertNetwork::route(const LayerWeights& weights, const ExpertRows& rows) {
  const auto values = [](const ggml_tensor* t) {
    return t == nullptr ? std::span<const float>()
                        : std::span(static_cast<const float*>(t->data), static_cast<std::size_t>(t->ne[0]));
  };
  const int n_used = rules_.n_used;
  std::fill(counts_.begin(), counts_.end(), 0);
  for (int r = 0; r < rows.x.rows; ++r) {
    const std::span ids(ids_.data() + r * n_used, n_used);
    choose_experts(rules_, {rows.logits.row(r), static_cast<std::size_t>(rules_.n)},
                   values(weights.choice_bias), ids, {weights_.data() + r * n_used, ids.size()});
    for (int slot = 0; slot < n_used && !weights.expert_scales.empty(); ++slot)
      weights_[r * n_used + slot] *= weights.expert_scales[ids[slot]];
    for (const std::int32_t id : ids) ++counts_[id];
    const std::span<const float> gate = values(weights.shared_gate);
    shared_weights_[r] = gate.empty() ? 1.0F : sigmoid(dot(rows.x.row(r), gate.data(), n_embd_));
  }
  runs_.clear();
  int first = 0;
  for (int expert = 0; expert < rules_.n; ++expert) {
    const int n = counts_[expert];
    if (n > 0) runs_.push_back({expert, first, n});
    counts_[expert] = first;
    first += n;
  }
  for (int i = 0; i < rows.x.rows * n_used; ++i) {
    const int pair = counts_[ids_[i]]++;
    pair_of_[i] = pair;
    row_of_[pair] = i / n_used;
  }
}

void ExpertNetwork::run(const LayerWeights& weights, const ExpertRows& rows, Team& team) {
  team.once([&] { route(weights, rows); });
  Layer layer(*this, weights, rows, team);
  if (MatrixProduct::is_batch(rows.x.rows)) {
    layer.many();
  } else {
    layer.few();
  }
}

}  // namespace kvant
