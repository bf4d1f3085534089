// HostLayerGradient: one layer of a transformer on a whole context, and its derivative, on the CPU.
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

// What a layer computes of a whole context in the forward pass. It keeps its memory from use to use.
struct LayerActivations {
  std::vector<float> qkv;                 // [n_rows, n_q + 2 n_kv]: as attention reads them
  std::vector<float> attended;            // [n_rows, n_q]
  std::vector<float> gate, up;            // [n_rows, n_ff]
  std::vector<std::vector<float>> saved;  // what norms read that nothing else keeps
  bool complete = false;                  // what forward() left is kept for backward(), which uses it up
};
// The bytes of a layer's activations.
std::int64_t activation_bytes(const Hparams& hparams, int n_rows);

// What layers compute with, one after the other.
struct LayerWorkspace {
  // The precision of products with weights in the backward pass, and of a network's products that this pass
  // computes again. All others are in F32, because other rounding changes how K and V are encoded, which
  // moves sensitivities by 5 %.
  GemmPrecision precision = GemmPrecision::f32;
  LayerActivations activations;  // of layers whose activations aren't kept
  PackedMatrix weight;           // that rows are multiplied by
  std::vector<float> x;          // [n_rows, n_embd]: the residual stream, where it is computed again
  // The gradients take the places of these.
  std::vector<float> normed;             // [n_rows, n_embd]: what a block reads
  std::vector<float> product;            // [n_rows, n_ff]: what a network multiplies by `down`
  std::vector<float> y;                  // [n_rows, n_embd]: what a block makes
  std::vector<float> attended_gradient;  // [n_rows, n_q]
  std::vector<float> qkv_gradient;       // [n_rows, n_q + 2 n_kv]
  std::vector<float> head_gradients;     // [n_heads, 2, n_rows, head_dim]: KvGradients
  std::vector<double> score_weights;     // [n_heads, n_rows]
};

class HostLayerGradient final : public LayerGradient {
 public:
  // What it refers to outlives it; what it gives lies in the workspace. kept: where backward() finds what
  // forward() computed, also of another object for the same layer; null: it computes that again.
  HostLayerGradient(const Hparams& hparams, int layer, const F32Layer& weights, const RopeTable& rope,
                    int n_rows, LayerWorkspace& workspace, LayerActivations* kept);
  HostLayerGradient(const HostLayerGradient&) = delete;
  HostLayerGradient& operator=(const HostLayerGradient&) = delete;

  // x [n_rows, n_embd]: the residual stream, before and after the layer. Every thread of the team calls it.
  void forward(MatrixView<float> x, Team& team);
  // x: what forward() got, or would get. gradient: of a loss by what it would give, becomes that by x.
  void backward(MatrixView<const float> x, MatrixView<float> gradient, Team& team);

  MatrixView<const float> stored(int kv_head, Side side) const override;
  HeadAttention attention(int head) const override;
  MatrixView<const float> output_gradient(int head) const override;
  std::vector<double> query_moments(int kv_head) const override;

 private:
  // Rows that operations read and write. Without memory: the residual stream.
  struct Value {
    int n_cols;
    std::vector<float>*values = nullptr, *gradient = nullptr;
    int last_reader = -1;  // the operation whose gradient the backward pass computes first
  };
  struct Multiplier {
    int n_in = 0, n_out = 0;  // of a row; 0: there is none
    GemmOperand b;
    GemmPrecision precision = GemmPrecision::f32;
  };
  // A part of a layer, and its derivative: of a block of rows, which may be multiplied by a weight; or of all
  // rows.
  struct Operation {
    std::function<void(int block)> forward, back;
    Multiplier forward_by, back_by;
    std::function<void(Team&)> forward_all, back_all;
    bool is_read_back = false;  // the backward pass reads what it has computed
    bool of_network = false;    // where it is computed again, its product may be rounded
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
  MatrixView<const float> qkv_head(int head) const;  // query heads, then those of K, then those of V
  KvGradients kv_gradients(int head);

  // Runs operations in order, or their derivatives in the opposite order.
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
