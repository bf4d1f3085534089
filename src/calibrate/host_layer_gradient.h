// HostLayerGradient: one layer of a transformer on a whole context, and its derivative, on the CPU.
#pragma once

#include <algorithm>
#include <cstdint>
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

// What a layer computes of a whole context on the way forward. Memory stays with it from use to use.
struct LayerActivations {
  std::vector<float> plain_qkv;  // [n_rows, n_q + 2 n_kv]: before norms and RoPE, where heads have norms
  std::vector<float> qkv;        // the same, after
  std::vector<float> attended;   // [n_rows, n_q]
  std::vector<float> middle;     // [n_rows, n_embd]: the residual stream before the feed-forward network
  std::vector<float> gate, up;   // [n_rows, n_ff]
  bool complete = false;         // what forward() left is kept for backward(), which uses it up
};
// Their bytes.
std::int64_t activation_bytes(const Hparams& hparams, int n_rows);

// What layers compute with, one after the other.
struct LayerWorkspace {
  // Of products with weights on the way back. What they are made of is F32: rounded otherwise, K and V are
  // encoded otherwise, which moves sensitivities by 5 %.
  GemmPrecision precision = GemmPrecision::f32;
  LayerActivations activations;  // of layers whose activations aren't kept
  PackedMatrix weight;           // that rows are multiplied by
  std::vector<float> normed;     // [n_rows, n_embd]: what the feed-forward network gets
  std::vector<float> product;    // [n_rows, n_ff]: what it multiplies by `down`, or the gradient by that
  std::vector<float> y, dy;      // [n_rows, n_embd]: what is added to the residual stream, and the gradient
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

  // x [n_rows, n_embd]: the residual stream, before and after the layer. Every thread of the team calls it.
  void forward(MatrixView<float> x, Team& team);
  // x: what forward() got, or would get. gradient: of a loss by what it would give, becomes that by x.
  void backward(MatrixView<const float> x, MatrixView<float> gradient, Team& team);

  MatrixView<const float> stored(int kv_head, Side side) const override;
  HeadAttention attention(int head) const override;
  MatrixView<const float> output_gradient(int head) const override;
  std::vector<double> query_moments(int kv_head) const override;

 private:
  bool has_head_norms() const { return !w_.q_norm.empty() || !w_.k_norm.empty(); }
  int n_q() const { return h_.n_heads * h_.head_dim; }
  int n_kv() const { return h_.n_kv_heads * h_.head_dim; }
  int n_qkv() const { return n_q() + 2 * n_kv(); }
  int n_blocks() const { return (n_rows_ + kPageTokens - 1) / kPageTokens; }
  int block_rows(int block) const { return std::min(kPageTokens, n_rows_ - block * kPageTokens); }
  MatrixView<float> rows(std::vector<float>& values, int n_cols, int block) {
    return {values.data() + static_cast<std::ptrdiff_t>(block) * kPageTokens * n_cols, block_rows(block),
            n_cols};
  }
  template <class T>
  MatrixView<T> part(MatrixView<T> x, int block) const {
    return x.slice(block * kPageTokens, block_rows(block));
  }
  MatrixView<const float> qkv_head(int head) const;  // query heads, then those of K, then those of V
  KvGradients kv_gradients(int head);

  // b of products with rows: W^T and W, W [n_out, n_in].
  struct Multiplier {
    int n_in, n_out;  // of a row
    GemmOperand b;
    GemmPrecision precision = GemmPrecision::f32;
  };
  static Multiplier forward_of(const std::vector<float>& weight, int n_out, int n_in) {
    return {n_in, n_out, transposed(weight.data(), n_in)};
  }
  Multiplier back_of(const std::vector<float>& weight, int n_out, int n_in) const {
    return {n_out, n_in, row_major(weight.data(), n_in), work_.precision};
  }
  // Runs body(block) for all blocks of rows with work_.weight packed.
  template <class Body>
  void multiply_by(const Multiplier& by, Team& team, const Body& body) {
    team.once([&] { work_.weight.resize(by.n_in, by.n_out, by.precision); });
    team.for_each(work_.weight.n_parts(), [&](int i) { work_.weight.pack(by.b, i); });
    team.for_each(n_blocks(), body);
  }

  void begin(MatrixView<float> x, GemmPrecision of_network, Team& team);
  void project(MatrixView<const float> x, int block);
  void attend(Team& team);
  void add_attended(MatrixView<float> x, int block);
  void find_y(Team& team);
  void feed_forward_back(MatrixView<float> gradient, Team& team);
  void attended_back(MatrixView<const float> gradient, Team& team);
  void project_back(MatrixView<const float> x, MatrixView<float> gradient, int block);
  void sum_group(int kv_head, int block);

  const Hparams& h_;
  const F32Layer& w_;
  const RopeTable& rope_;
  int n_rows_;
  AttentionShape shape_;
  GatedUnit unit_;
  LayerWorkspace& work_;
  const bool keeps_;
  LayerActivations& a_;
};

}  // namespace kvant
