#include "cache/correction_state.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/simd_clones.h"

namespace kvant {

namespace {

std::size_t numbers(int head_dim) {
  return static_cast<std::size_t>(kCorrectionFeatures) * (head_dim + 1);
}

}  // namespace

std::int64_t correction_bytes(int head_dim) {
  return static_cast<std::int64_t>(numbers(head_dim) * sizeof(float));
}

void CorrectionState::reserve(int head_dim) {
  head_dim_ = head_dim;
  if (sums_.empty()) sums_.assign(numbers(head_dim), 0);
}

void CorrectionState::add(std::span<const float> adapter, MatrixView<const float> errors,
                          MatrixView<const float> values, const TokenMask& left_out) {
  std::vector<float> features(static_cast<std::size_t>(errors.rows) * kCorrectionFeatures);
  map_features(adapter, errors, {features.data(), errors.rows, kCorrectionFeatures});
  std::vector<float> of_page(head_dim_ + 1);
  for (int f = 0; f < kCorrectionFeatures; ++f) {
    std::fill(of_page.begin(), of_page.end(), 0.0F);
    for (int t = 0; t < errors.rows; ++t) {
      if (left_out.test(t)) continue;
      const float phi = features[static_cast<std::ptrdiff_t>(t) * kCorrectionFeatures + f];
      for (int c = 0; c < head_dim_; ++c) of_page[c] += phi * values.row(t)[c];
      of_page[head_dim_] += phi;
    }
    float* sum = sums_.data() + static_cast<std::ptrdiff_t>(f) * (head_dim_ + 1);
    for (int c = 0; c <= head_dim_; ++c) sum[c] += of_page[c];
  }
}

float CorrectionState::apply(std::span<const float> phi, float* out) const {
  std::fill(out, out + head_dim_, 0.0F);
  float mass = 0;
  for (int f = 0; f < kCorrectionFeatures; ++f) {
    const float* sum = sums_.data() + static_cast<std::ptrdiff_t>(f) * (head_dim_ + 1);
    for (int c = 0; c < head_dim_; ++c) out[c] += phi[f] * sum[c];
    mass += phi[f] * sum[head_dim_];
  }
  return mass;
}

namespace {

// Computes y = x W for one row. W is [d, n].
KVANT_SIMD_CLONES void multiply_row(const float* x, const float* w, int d, int n, float* y) {
  std::fill(y, y + n, 0.0F);
  for (int i = 0; i < d; ++i) {
    for (int j = 0; j < n; ++j) y[j] += x[i] * w[i * n + j];
  }
}

void softmax_row(float* y, int n) {
  const float top = *std::max_element(y, y + n);
  float sum = 0;
  for (int j = 0; j < n; ++j) sum += y[j] = std::exp(y[j] - top);
  for (int j = 0; j < n; ++j) y[j] /= sum;
}

}  // namespace

void map_features(std::span<const float> weights, MatrixView<const float> x, MatrixView<float> features) {
  constexpr int kHalf = kCorrectionFeatures / 2;
  KVANT_CHECK(weights.size() == feature_map_weights(x.cols), "a feature map of another head size");
  for (int r = 0; r < x.rows; ++r) {
    for (int half = 0; half < 2; ++half) {
      float* y = features.row(r) + half * kHalf;
      multiply_row(x.row(r), weights.data() + static_cast<std::ptrdiff_t>(half) * x.cols * kHalf, x.cols,
                   kHalf, y);
      softmax_row(y, kHalf);
    }
  }
}

}  // namespace kvant
