#include "calibrate/head_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/softmax.h"
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

PackedMatrix packed_pages(Side side, MatrixView<const float> held, MatrixView<const float> exact) {
  std::vector<float> errors;
  if (side == Side::value) {
    for (int t = 0; t < held.rows; ++t)
      for (int i = 0; i < held.cols; ++i) errors.push_back(held.row(t)[i] - exact.row(t)[i]);
    held = {errors.data(), held.rows, held.cols};
  }
  PackedMatrix pages;
  pages.resize(held.cols, held.rows);
  for (int part = 0; part < pages.n_parts(); ++part) pages.pack(columns_of(held), part);
  return pages;
}

void HeadAttention::turn_to(int block) {
  first_ = block * kPageTokens;
  n_queries_ = std::min(kPageTokens, q_.rows - first_);
  n_keys_ = first_ + n_queries_;
}

void HeadAttention::weigh() {
  weights_.resize(static_cast<std::size_t>(n_queries_) * n_keys_);
  gemm(n_queries_, first_, q_.cols, rows_of(q_, first_), columns_of(k_), /*accumulate=*/false,
       weights_.data(), n_keys_);
  weigh_products(weights_);
}

void HeadAttention::weigh_products(std::vector<float>& weights) {
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
  weigh();
  gemm(n_queries_, v_.cols, n_keys_, row_major(weights_.data(), n_keys_), rows_of(v_), /*accumulate=*/false,
       out.data, out.stride);
}

// The weights are P, and the outputs are O = P V. The derivatives are dV = P^T dO, dS = P (dO V^T - mean), dQ
// = dS K and dK = dS^T Q, where the mean of dO V^T is weighted by P.
void HeadAttention::attend_back(int block, MatrixView<const float> gradient, MatrixView<float> q_gradient,
                                const KvGradients& kv) {
  turn_to(block);
  weigh();
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
    const float* after_sink = by_scores + kSinkTokens;
    kv.score_weights[first_ + r] = std::sqrt(dot_row(after_sink, after_sink, first_ - kSinkTokens));
  }
  gemm(n_queries_, d, n_keys_, row_major(products_.data(), n_keys_), rows_of(k_), /*accumulate=*/false,
       q_gradient.data, q_gradient.stride);
  gemm(n_keys_, d, n_queries_, transposed(products_.data(), n_keys_), rows_of(q_, first_),
       /*accumulate=*/true, kv.k.data, kv.k.stride);
}

void HeadAttention::look_at(int block, MatrixView<const float> gradient) {
  turn_to(block);
  gradient_ = gradient;
  weigh();
  products_.resize(weights_.size());
  gemm(n_queries_, n_keys_, v_.cols, rows_of(gradient), columns_of(v_), /*accumulate=*/false,
       products_.data(), n_keys_);
}

// P are the weights, and P' are the weights with errors of keys. The effect is dO . (P' - P) V for errors of
// keys, and dO . P (V' - V) for errors of values.
void HeadAttention::add_effects(Side side, const PackedMatrix& pages, double* effects) {
  const int n = side == Side::key ? n_keys_ : first_;  // a row of changed_ has this many values
  changed_.resize(static_cast<std::size_t>(n_queries_) * n);
  gemm(n_queries_, first_, side == Side::key ? rows_of(q_, first_) : rows_of(gradient_), pages,
       /*accumulate=*/false, changed_.data(), n);
  if (side == Side::key) weigh_products(changed_);
  for (int r = 0; r < n_queries_; ++r) {
    const float* changed = changed_.data() + static_cast<std::ptrdiff_t>(r) * n;
    const float* weights = weights_.data() + static_cast<std::ptrdiff_t>(r) * n_keys_;
    const float* products = products_.data() + static_cast<std::ptrdiff_t>(r) * n_keys_;
    effects[r] +=
        side == Side::key ? difference_dot_row(changed, weights, products, n) : dot_row(changed, weights, n);
  }
}

}  // namespace kvant
