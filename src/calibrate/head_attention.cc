#include "calibrate/head_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/softmax.h"
#include "base/gemm.h"
#include "calibrate/capture.h"

namespace kvant {
namespace {

GemmOperand rows_of(MatrixView<const float> x, int first = 0) {
  return row_major(x.row(first), x.stride);
}
GemmOperand columns_of(MatrixView<const float> x) {
  return transposed(x.data, x.stride);
}

}  // namespace

void HeadAttention::weigh(int block) {
  first_ = block * kPageTokens;
  n_queries_ = std::min(kPageTokens, q_.rows - first_);
  n_keys_ = first_ + n_queries_;
  weights_.resize(static_cast<std::size_t>(n_queries_) * n_keys_);
  gemm(n_queries_, n_keys_, q_.cols, rows_of(q_, first_), columns_of(k_), /*accumulate=*/false,
       weights_.data(), n_keys_);
  if (shape_.softcap > 0) slopes_.resize(weights_.size());
  for (int r = 0; r < n_queries_; ++r) {
    float* w = weights_.data() + static_cast<std::ptrdiff_t>(r) * n_keys_;
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
  weigh(block);
  gemm(n_queries_, v_.cols, n_keys_, row_major(weights_.data(), n_keys_), rows_of(v_), /*accumulate=*/false,
       out.data, out.stride);
}

// With P the weights and O = P V: dV = P^T dO, dS = P (dO V^T - its mean under P), dQ = dS K, dK = dS^T Q.
void HeadAttention::attend_back(int block, MatrixView<const float> gradient, MatrixView<float> q_gradient,
                                const KvGradients& kv) {
  weigh(block);
  const int d = q_.cols;
  const int n_open = n_keys_ - first_;
  const GemmOperand dO = rows_of(gradient);
  const GemmOperand p = transposed(weights_.data(), n_keys_);
  gemm(first_, d, n_queries_, p, dO, /*accumulate=*/true, kv.sealed_v.data, kv.sealed_v.stride);
  gemm(n_open, d, n_queries_, transposed(weights_.data() + first_, n_keys_), dO, /*accumulate=*/false,
       kv.open_v.row(first_), kv.open_v.stride);

  products_.resize(weights_.size());
  gemm(n_queries_, n_keys_, d, dO, columns_of(v_), /*accumulate=*/false, products_.data(), n_keys_);
  for (int r = 0; r < n_queries_; ++r) {
    const std::size_t row = static_cast<std::size_t>(r) * n_keys_;
    double mean = 0;
    for (int i = 0; i < n_keys_; ++i) mean += static_cast<double>(weights_[row + i]) * products_[row + i];
    const auto mean_f = static_cast<float>(mean);
    for (int i = 0; i < n_keys_; ++i)
      products_[row + i] = weights_[row + i] * (products_[row + i] - mean_f) * shape_.scale;
    for (int i = 0; shape_.softcap > 0 && i < n_keys_; ++i) products_[row + i] *= slopes_[row + i];
  }
  for (int r = 0; kv.score_weights != nullptr && r < n_queries_; ++r) {
    const float* by_scores = products_.data() + static_cast<std::ptrdiff_t>(r) * n_keys_;
    double squares = 0;
    for (int i = kSinkTokens; i < first_; ++i) squares += static_cast<double>(by_scores[i]) * by_scores[i];
    kv.score_weights[first_ + r] = std::sqrt(squares);
  }
  gemm(n_queries_, d, n_keys_, row_major(products_.data(), n_keys_), rows_of(k_), /*accumulate=*/false,
       q_gradient.data, q_gradient.stride);
  gemm(first_, d, n_queries_, transposed(products_.data(), n_keys_), rows_of(q_, first_), /*accumulate=*/true,
       kv.sealed_k.data, kv.sealed_k.stride);
  gemm(n_open, d, n_queries_, transposed(products_.data() + first_, n_keys_), rows_of(q_, first_),
       /*accumulate=*/false, kv.open_k.row(first_), kv.open_k.stride);
}

}  // namespace kvant
