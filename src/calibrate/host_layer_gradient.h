// HostLayerGradient: one layer of a transformer on a whole context, and its derivative, on the CPU.
#pragma once

#include <algorithm>
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

class HostLayerGradient final : public LayerGradient {
 public:
  // What it refers to outlives it.
  HostLayerGradient(const Hparams& hparams, int layer, const F32Layer& weights, const RopeTable& rope,
                    int n_rows);

  // x [n_rows, n_embd]: the residual stream, before and after the layer. Every thread of the team calls it.
  void forward(MatrixView<float> x, Team& team);
  // x: what forward() would get. gradient: of a loss by what it would give, becomes that by x.
  void backward(MatrixView<const float> x, MatrixView<float> gradient, Team& team);

  MatrixView<const float> stored(int kv_head, Side side) const override;
  HeadAttention attention(int head) const override;
  MatrixView<const float> output_gradient(int head) const override;
  std::vector<double> query_moments(int kv_head) const override;

 private:
  struct FeedForward;
  int n_q() const { return h_.n_heads * h_.head_dim; }
  int n_kv() const { return h_.n_kv_heads * h_.head_dim; }
  int n_blocks() const { return (n_rows_ + kPageTokens - 1) / kPageTokens; }
  int block_rows(int block) const { return std::min(kPageTokens, n_rows_ - block * kPageTokens); }
  MatrixView<float> rows(std::vector<float>& values, int n_cols, int block) {
    return {values.data() + static_cast<std::ptrdiff_t>(block) * kPageTokens * n_cols, block_rows(block),
            n_cols};
  }
  MatrixView<const float> qkv_head(int head) const;  // query heads, then those of K, then those of V
  KvGradients kv_gradients(int head);

  void project(MatrixView<const float> x, int block);
  void project_back(MatrixView<const float> x, MatrixView<float> gradient, int block);
  void add_attended(MatrixView<float> x, int block);
  void feed_forward(MatrixView<float> x) const;
  void feed_forward_back(MatrixView<const float> x, MatrixView<float> gradient) const;
  void attended_back(MatrixView<const float> gradient, int block);
  void sum_group(int kv_head, int block);

  const Hparams& h_;
  const F32Layer& w_;
  const RopeTable& rope_;
  int n_rows_;
  AttentionShape shape_;
  GatedUnit unit_;
  std::vector<float> plain_qkv_;          // [n_rows, n_q + 2 n_kv]: before norms and RoPE
  std::vector<float> qkv_;                // the same, after
  std::vector<float> attended_;           // [n_rows, n_q]
  std::vector<float> attended_gradient_;  // [n_rows, n_q]
  std::vector<float> qkv_gradient_;       // [n_rows, n_q + 2 n_kv]
  std::vector<float> head_gradients_;     // [n_heads, 2, n_rows, head_dim]: KvGradients
  std::vector<double> score_weights_;     // [n_heads, n_rows]
};

}  // namespace kvant
