#include "calibrate/head_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/softmax.h"
#include "base/gemm.h"
#include "calibrate/capture.h"
#include "calibrate/row_sums.h"
#include "model/hparams.h"

namespace kvant {
namespace {

GemmOperand rows_of(MatrixView<const float> x, int first = 0) {
  return row_major(x.row(first), x.stride);
}
GemmOperand columns_of(MatrixView<const float> x) {
  return transposed(x.data, x.stride);
}

}  // namespace

AttentionShape attention_shape(const Hparams& hparams, int layer) {
  return {hparams.softmax_scale, hparams.score_softcap, hparams.sliding_window[layer]};
}

void HeadAttention::turn_to(int block) {
  first_ = block * kPageTokens;
  n_queries_ = std::min(kPageTokens, q_.rows - first_);
  n_keys_ = first_ + n_queries_;
}

void HeadAttention::weigh(MatrixView<const float> sealed, std::vector<float>& weights) {
  weights.resize(static_cast<std::size_t>(n_queries_) * n_keys_);
  gemm(n_queries_, first_, q_.cols, rows_of(q_, first_), columns_of(sealed), /*accumulate=*/false,
       weights.data(), n_keys_);
  gemm(n_queries_, n_queries_, q_.cols, rows_of(q_, first_), columns_of(k_.slice(first_, n_queries_)),
       /*accumulate=*/false, weights.data() + first_, n_keys_);
  if (shape_.softcap > 0) slopes_.resize(weights.size());
  for (int r = 0; r < n_queries_; ++r) {
    float* w = weights.data() + static_cast<std::ptrdiff_t>(r) * n_keys_;
    scale_row(w, n_keys_, shape_.scale);
    for (int i = 0; shape_.softcap > 0 && i < n_keys_; ++i) {
      const float t = std::tanh(w[i] / shape_.softcap);
      w[i] = shape_.softcap * t;
      slopes_[static_cast<std::size_t>(r) * n_keys_ + i] = 1 - t * t;
    }
    const int end = first_ + r + 1;
    const int begin = shape_.window > 0 ? std::max(0, end - shape_.window) : 0;
    std::fill(w, w + begin, 0.0F);
    std::fill(w + end, w + n_keys_, 0.0F);
    const float sum = exp_row(w + begin, end - begin, max_row(w + begin, end - begin));
    scale_row(w + begin, end - begin, 1 / sum);
  }
}

void HeadAttention::attend(int block, MatrixView<float> out) {
  turn_to(block);
  weigh(k_, weights_);
  gemm(n_queries_, v_.cols, n_keys_, row_major(weights_.data(), n_keys_), rows_of(v_), /*accumulate=*/false,
       out.data, out.stride);
}

// With P the weights and O = P V: dV = P^T dO, dS = P (dO V^T - its mean under P), dQ = dS K, dK = dS^T Q.
void HeadAttention::attend_back(int block, MatrixView<const float> gradient, MatrixView<float> q_gradient,
                                const KvGradients& kv) {
  turn_to(block);
  weigh(k_, weights_);
  const int d = q_.cols;
  const GemmOperand dO = rows_of(gradient);
  gemm(n_keys_, d, n_queries_, transposed(weights_.data(), n_keys_), dO, /*accumulate=*/true, kv.v.data,
       kv.v.stride);

  products_.resize(weights_.size());
  gemm(n_queries_, n_keys_, d, dO, columns_of(v_), /*accumulate=*/false, products_.data(), n_keys_);
  for (int r = 0; r < n_queries_; ++r) {
    const std::size_t row = static_cast<std::size_t>(r) * n_keys_;
    const auto mean_f = static_cast<float>(dot_row(&weights_[row], &products_[row], n_keys_));
    for (int i = 0; i < n_keys_; ++i)
      products_[row + i] = weights_[row + i] * (products_[row + i] - mean_f) * shape_.scale;
    for (int i = 0; shape_.softcap > 0 && i < n_keys_; ++i) products_[row + i] *= slopes_[row + i];
  }
  for (int r = 0; kv.score_weights != nullptr && r < n_queries_; ++r) {
    const float* by_scores = products_.data() + static_cast<std::ptrdiff_t>(r) * n_keys_;
    const float* behind_sink = by_scores + kSinkTokens;
    kv.score_weights[first_ + r] = std::sqrt(dot_row(behind_sink, behind_sink, first_ - kSinkTokens));
  }
  gemm(n_queries_, d, n_keys_, row_major(products_.data(), n_keys_), rows_of(k_), /*accumulate=*/false,
       q_gradient.data, q_gradient.stride);
  gemm(n_keys_, d, n_queries_, transposed(products_.data(), n_keys_), rows_of(q_, first_),
       /*accumulate=*/true, kv.k.data, kv.k.stride);
}

void HeadAttention::look_at(int block, MatrixView<const float> gradient) {
  turn_to(block);
  gradient_ = gradient;
  weigh(k_, weights_);
  products_.resize(weights_.size());
  gemm(n_queries_, n_keys_, v_.cols, rows_of(gradient), columns_of(v_), /*accumulate=*/false,
       products_.data(), n_keys_);
}

// With P the weights, P' those with errors: dO . (P' - P) V of keys, dO . P (V' - V) of values.
void HeadAttention::add_effects(Side side, MatrixView<const float> held, double* effects) {
  int n = n_keys_;  // in a row of changed_
  if (side == Side::key) {
    weigh(held, changed_);
  } else {
    n = first_;
    errors_.resize(static_cast<std::size_t>(first_) * v_.cols);
    for (int t = 0; t < first_; ++t)
      for (int i = 0; i < v_.cols; ++i)
        errors_[static_cast<std::size_t>(t) * v_.cols + i] = held.row(t)[i] - v_.row(t)[i];
    changed_.resize(static_cast<std::size_t>(n_queries_) * first_);
    gemm(n_queries_, first_, v_.cols, rows_of(gradient_), columns_of({errors_.data(), first_, v_.cols}),
         /*accumulate=*/false, changed_.data(), first_);
  }
  for (int r = 0; r < n_queries_; ++r) {
    const float* changed = changed_.data() + static_cast<std::ptrdiff_t>(r) * n;
    const float* weights = weights_.data() + static_cast<std::ptrdiff_t>(r) * n_keys_;
    const float* products = products_.data() + static_cast<std::ptrdiff_t>(r) * n_keys_;
    effects[r] +=
        side == Side::key ? difference_dot_row(changed, weights, products, n) : dot_row(changed, weights, n);
  }
}

}  // namespace kvant
