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
  // For the way back, where they are kept:
  std::vector<float> middle;    // [n_rows, n_embd]: the residual stream before the feed-forward network
  std::vector<float> gate, up;  // [n_rows, n_ff]
  bool complete = false;        // forward() has left all of it, and backward() may use it up
};
// Bytes of those that are kept.
std::int64_t activation_bytes(const Hparams& hparams, int n_rows);

class HostLayerGradient final : public LayerGradient {
 public:
  // What it refers to outlives it. keeps: backward() finds in `activations` what forward() computed, also of
  // another object for the same layer; else it computes that again.
  HostLayerGradient(const Hparams& hparams, int layer, const F32Layer& weights, const RopeTable& rope,
                    int n_rows, LayerActivations& activations, bool keeps);

  // x [n_rows, n_embd]: the residual stream, before and after the layer. Every thread of the team calls it.
  void forward(MatrixView<float> x, Team& team);
  // x: what forward() got, or would get. gradient: of a loss by what it would give, becomes that by x.
  void backward(MatrixView<const float> x, MatrixView<float> gradient, Team& team);

  MatrixView<const float> stored(int kv_head, Side side) const override;
  HeadAttention attention(int head) const override;
  MatrixView<const float> output_gradient(int head) const override;
  std::vector<double> query_moments(int kv_head) const override;

 private:
  struct FeedForward;
  bool has_head_norms() const { return !w_.q_norm.empty() || !w_.k_norm.empty(); }
  int n_q() const { return h_.n_heads * h_.head_dim; }
  int n_kv() const { return h_.n_kv_heads * h_.head_dim; }
  int n_blocks() const { return (n_rows_ + kPageTokens - 1) / kPageTokens; }
  int block_rows(int block) const { return std::min(kPageTokens, n_rows_ - block * kPageTokens); }
  MatrixView<float> rows(std::vector<float>& values, int n_cols, int block) {
    return {values.data() + static_cast<std::ptrdiff_t>(block) * kPageTokens * n_cols, block_rows(block),
            n_cols};
  }
  MatrixView<float> kept(std::vector<float>& values, int n_cols, int block) {
    return keeps_ ? rows(values, n_cols, block) : MatrixView<float>{nullptr, 0, 0};
  }
  MatrixView<const float> qkv_head(int head) const;  // query heads, then those of K, then those of V
  KvGradients kv_gradients(int head);

  void project(MatrixView<const float> x, int block);
  void project_back(MatrixView<const float> x, MatrixView<float> gradient, int block);
  void attend(Team& team);
  void add_attended(MatrixView<float> x, int block);
  void feed_forward(MatrixView<float> x, int block);
  void feed_forward_back(MatrixView<const float> x, MatrixView<float> gradient, int block);
  void attended_back(MatrixView<const float> gradient, int block);
  void sum_group(int kv_head, int block);

  const Hparams& h_;
  const F32Layer& w_;
  const RopeTable& rope_;
  int n_rows_;
  AttentionShape shape_;
  GatedUnit unit_;
  LayerActivations& a_;
  const bool keeps_;
  std::vector<float> attended_gradient_;  // [n_rows, n_q]
  std::vector<float> qkv_gradient_;       // [n_rows, n_q + 2 n_kv]
  std::vector<float> head_gradients_;     // [n_heads, 2, n_rows, head_dim]: KvGradients
  std::vector<double> score_weights_;     // [n_heads, n_rows]
};

}  // namespace kvant
