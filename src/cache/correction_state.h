// CorrectionState holds the sums of KVLinC's linear correction over the sealed pages of one (sequence, layer,
// KV head). The sums are S = sum phi_k(e)^T v and P = sum phi_k(e), where e = K - K_q is the key's rounding
// error (KVLinC section 3, eq. 5, 6).
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

// D is the number of features of phi. Each of the two matrices gives half of them.
inline constexpr int kCorrectionFeatures = kAdapterFeatures;

// Returns the number of weights of one map for a head size d: W1 and W2, each [d, D / 2].
inline constexpr std::size_t feature_map_weights(int head_dim) {
  return static_cast<std::size_t>(head_dim) * kCorrectionFeatures;
}

// Sets features[r] = phi(x_r). `weights` holds W1 and then W2, row-major. x is [n, d], and features is [n,
// D].
void map_features(std::span<const float> weights, MatrixView<const float> x, MatrixView<float> features);

// Returns the bytes of S and P for a head size.
std::int64_t correction_bytes(int head_dim);

class CorrectionState {
 public:
  bool empty() const { return sums_.empty(); }
  // Allocates S and P as zeros.
  void reserve(int head_dim);

  // Adds the K errors and quantized V, [n, d], of a page, except for the tokens in left_out. `adapter` holds
  // the weights of phi_k.
  void add(std::span<const float> adapter, MatrixView<const float> errors, MatrixView<const float> values,
           const TokenMask& left_out);

  // Sets out [d] to phi S, and returns phi P. phi is [D].
  float apply(std::span<const float> phi, float* out) const;

  // Returns S and P as [D][d + 1], with P in the last column. The list is empty if nothing has been summed
  // up.
  const std::vector<float>& sums() const { return sums_; }
  // Takes sums in the form of sums(), for heads of this size.
  void take(std::vector<float> sums, int head_dim) {
    sums_ = std::move(sums);
    head_dim_ = head_dim;
  }
  std::int64_t bytes() const { return empty() ? 0 : correction_bytes(head_dim_); }

 private:
  int head_dim_ = 0;
  // Each page is summed on its own before it is added, so the relative error of the sums stays near 1e-7 for
  // each page.
  std::vector<float> sums_;
};

}  // namespace kvant
