// Computes one layer of a transformer on a whole context, and the layer's derivative, on the CPU. The
// operations come from the layer's program, and each has a derivative. model_gradient() runs the layers in
// turn.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "base/matrix_view.h"
#include "base/team.h"
#include "calibrate/f32_layer.h"
#include "calibrate/head_attention.h"
#include "calibrate/layer_gradient.h"
#include "calibrate/rope_table.h"
#include "calibrate/row_gradients.h"
#include "model/hparams.h"

namespace kvant {

// LayerActivations holds the values that a layer computes for a whole context in the forward pass. The memory
// is reused.
struct LayerActivations {
  std::vector<float> qkv;                 // [n_rows, n_q + 2 n_kv], inputs of attention
  std::vector<float> attended;            // [n_rows, n_q]
  std::vector<float> gate, up;            // [n_rows, n_ff]
  std::vector<std::vector<float>> saved;  // inputs of norms that no other member holds
  bool complete = false;                  // forward() has left everything for backward(), which overwrites it
};
// Returns the bytes of a layer's activations.
std::int64_t activation_bytes(const Hparams& hparams, int n_rows);

// LayerWorkspace is the memory that all layers use in turn.
struct LayerWorkspace {
  // `precision` applies to products with weights in the backward pass, and to a network's products that the
  // backward pass computes again. All other products are in F32, because other rounding would change how K
  // and V are encoded, which moves sensitivities by 5 %.
  GemmPrecision precision = GemmPrecision::f32;
  LayerActivations activations;  // activations of a layer whose activations are not kept
  PackedMatrix weight;           // the current product multiplies by this weight
  std::vector<float> x;          // [n_rows, n_embd], the residual stream, if it is computed again
  // The gradients by the values from `normed` to `y` overwrite the values.
  std::vector<float> normed;             // [n_rows, n_embd], inputs of a block
  std::vector<float> product;            // [n_rows, n_ff], inputs of a network's `down`
  std::vector<float> y;                  // [n_rows, n_embd], outputs of a block
  std::vector<float> attended_gradient;  // [n_rows, n_q]
  std::vector<float> qkv_gradient;       // [n_rows, n_q + 2 n_kv]
  std::vector<float> head_gradients;     // [n_heads, 2, n_rows, head_dim], KvGradients of each head
  std::vector<double> score_weights;     // [n_heads, n_rows]
};

class HostLayerGradient final : public LayerGradient {
 public:
  // All arguments must outlive the object, and results lie in the workspace. backward() takes the forward
  // pass's activations from `kept`, also if another object of the same layer computed them. If `kept` is
  // null, backward() computes them again.
  HostLayerGradient(const Hparams& hparams, int layer, const F32Layer& weights, const RopeTable& rope,
                    int n_rows, LayerWorkspace& workspace, LayerActivations* kept);
  HostLayerGradient(const HostLayerGradient&) = delete;
  HostLayerGradient& operator=(const HostLayerGradient&) = delete;

  // Runs the layer. x [n_rows, n_embd] is the residual stream, before and after the layer. Every thread of
  // the team calls forward().
  void forward(MatrixView<float> x, Team& team);
  // Computes the derivative. `x` is the input of forward(), which need not have run. `gradient` is the
  // derivative of a loss by the layer's output, and becomes the derivative by x.
  void backward(MatrixView<const float> x, MatrixView<float> gradient, Team& team);

  MatrixView<const float> stored(int kv_head, Side side) const override;
  HeadAttention attention(int head) const override;
  MatrixView<const float> output_gradient(int head) const override;
  std::vector<double> query_moments(int kv_head) const override;

 private:
  // Value describes rows that operations read and write. A Value without memory stands for the residual
  // stream.
  struct Value {
    int n_cols;
    std::vector<float>*values = nullptr, *gradient = nullptr;
    int last_reader = -1;  // the backward pass computes the gradient of this operation first
  };
  struct Multiplier {
    int n_in = 0, n_out = 0;  // values per row; 0 if there is no product
    GemmOperand b;
    GemmPrecision precision = GemmPrecision::f32;
  };
  // Operation is a part of a layer with its derivative. An operation works on a block of rows or on all rows.
  // A block of rows may be multiplied by a weight.
  struct Operation {
    std::function<void(int block)> forward, back;
    Multiplier forward_by, back_by;
    std::function<void(Team&)> forward_all, back_all;
    bool is_read_back = false;  // the backward pass reads the operation's result
    bool of_network = false;    // if the product is computed again, it may be rounded
  };
  class Walker;

  int n_q() const { return h_.n_heads * h_.head_dim; }
  int n_kv() const { return h_.n_kv_heads * h_.head_dim; }
  int n_qkv() const { return n_q() + 2 * n_kv(); }
  int n_blocks() const { return (n_rows_ + kPageTokens - 1) / kPageTokens; }
  int block_rows(int block) const { return std::min(kPageTokens, n_rows_ - block * kPageTokens); }
  MatrixView<float> rows(std::vector<float>& values, int n_cols, int block) const {
    return {values.data() + static_cast<std::ptrdiff_t>(block) * kPageTokens * n_cols, block_rows(block),
            n_cols};
  }
  template <class T>
  MatrixView<T> part(MatrixView<T> x, int block) const {
    return x.slice(block * kPageTokens, block_rows(block));
  }
  MatrixView<float> value(const Value& v, int block) const {
    return v.values == nullptr ? part(x_, block) : rows(*v.values, v.n_cols, block);
  }
  MatrixView<float> gradient(const Value& v, int block) const {
    return v.gradient == nullptr ? part(gradient_, block) : rows(*v.gradient, v.n_cols, block);
  }
  // Returns q, K or V of a head. The heads are numbered in the order of query heads, heads of K, and heads of
  // V.
  MatrixView<const float> qkv_head(int head) const;
  KvGradients kv_gradients(int head);

  // Runs operations in order, or their derivatives in reverse order.
  void run(Team& team, bool back, int n_operations, bool again);
  template <class Body>
  void multiply_by(const Multiplier& by, Team& team, const Body& body);
  void attend(Team& team);
  void attend_back(Team& team);
  void sum_group(int kv_head, int block);

  const Hparams& h_;
  const int layer_;
  const F32Layer& w_;
  const RopeTable& rope_;
  const int n_rows_;
  const AttentionShape shape_;
  LayerWorkspace& work_;
  const bool keeps_;
  LayerActivations& a_;
  std::deque<Value> values_;
  std::vector<Operation> operations_;
  MatrixView<const float> x_before_;
  MatrixView<float> x_, gradient_;
};

}  // namespace kvant
