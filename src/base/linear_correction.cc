#include "base/linear_correction.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/simd_clones.h"

namespace kvant {
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

void map_features(const float* weights, MatrixView<const float> x, MatrixView<float> features) {
  constexpr int kHalf = kCorrectionFeatures / 2;
  for (int r = 0; r < x.rows; ++r) {
    for (int half = 0; half < 2; ++half) {
      float* y = features.row(r) + half * kHalf;
      multiply_row(x.row(r), weights + static_cast<std::ptrdiff_t>(half) * x.cols * kHalf, x.cols, kHalf, y);
      softmax_row(y, kHalf);
    }
  }
}

void add_to_sums(const float* weights, MatrixView<const float> errors, MatrixView<const float> values,
                 const TokenMask& left_out, float* sums) {
  const std::ptrdiff_t d = errors.cols;
  std::vector<float> features(static_cast<std::size_t>(errors.rows) * kCorrectionFeatures);
  map_features(weights, errors, {features.data(), errors.rows, kCorrectionFeatures});
  std::vector<float> of_page(d);
  for (int f = 0; f < kCorrectionFeatures; ++f) {
    std::fill(of_page.begin(), of_page.end(), 0.0F);
    float mass = 0;
    for (int t = 0; t < errors.rows; ++t) {
      if (left_out.test(t)) continue;
      const float phi = features[static_cast<std::ptrdiff_t>(t) * kCorrectionFeatures + f];
      for (int c = 0; c < d; ++c) of_page[c] += phi * values.row(t)[c];
      mass += phi;
    }
    for (int c = 0; c < d; ++c) sums[f * d + c] += of_page[c];
    sums[kCorrectionFeatures * d + f] += mass;
  }
}

float multiply_by_sums(const float* sums, const float* phi, int d, float* out) {
  std::fill(out, out + d, 0.0F);
  float mass = 0;
  for (int f = 0; f < kCorrectionFeatures; ++f) {
    const float* const of_feature = sums + std::ptrdiff_t{f} * d;
    for (int c = 0; c < d; ++c) out[c] += phi[f] * of_feature[c];
    mass += phi[f] * sums[std::ptrdiff_t{kCorrectionFeatures} * d + f];
  }
  return mass;
}

}  // namespace kvant
