// CorrectionState: what KVLinC's linear correction remembers of the sealed pages of one (sequence, layer, KV
// head): S = sum phi_k(e)^T v and P = sum phi_k(e), with e = K - K_q the key's rounding error (KVLinC section
// 3, eq. 5, 6).
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/matrix_view.h"
#include "base/token_mask.h"
#include "recipe/constant_needs.h"

namespace kvant {

// --- the feature map of the correction (eq. 6): phi(x) = [softmax(x W1), softmax(x W2)] ---

// D: features of phi, half from each matrix.
inline constexpr int kCorrectionFeatures = kAdapterFeatures;

// The number of weights of one map for head size d: W1 and W2, each [d, D / 2].
inline constexpr std::size_t feature_map_weights(int head_dim) {
  return static_cast<std::size_t>(head_dim) * kCorrectionFeatures;
}

// features[r] = phi(x_r). weights: W1 then W2, row-major; x: [n, d]; features: [n, D].
void map_features(std::span<const float> weights, MatrixView<const float> x, MatrixView<float> features);

// Bytes of S and P for head size d.
std::int64_t correction_bytes(int head_dim);

class CorrectionState {
 public:
  bool empty() const { return sums_.empty(); }
  // Allocates S and P, zero.
  void reserve(int head_dim);

  // Adds a page: K errors and quantized V, [n, d], but the tokens in left_out. adapter: the weights of phi_k.
  void add(std::span<const float> adapter, MatrixView<const float> errors, MatrixView<const float> values,
           const TokenMask& left_out);

  // out <- phi S [d]; returns phi P. phi: [D].
  float apply(std::span<const float> phi, float* out) const;

  // S and P: [D][d + 1], P in the last column; none: nothing has been summed up.
  std::span<const float> sums() const { return sums_; }
  // Takes such sums for heads of this size.
  void take(std::vector<float> sums, int head_dim) {
    sums_ = std::move(sums);
    head_dim_ = head_dim;
  }
  std::int64_t bytes() const { return empty() ? 0 : correction_bytes(head_dim_); }

 private:
  int head_dim_ = 0;
  // A page is summed by itself before it is added: the sums then are good to some 1e-7 for each page.
  std::vector<float> sums_;
};

}  // namespace kvant
