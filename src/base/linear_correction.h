// Computes KVLinC's linear correction (section 3): its feature map (eq. 6), and its sums over sealed tokens
// (eq. 5). The sums are S = sum phi_k(e)^T v and z = sum phi_k(e) (KVLinC's P), where e = K - K_q is a key's
// rounding error. The sums of a KV head are S [D][d], and then z [D].
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/matrix_view.h"
#include "base/token_mask.h"

namespace kvant {

// D is the number of features of phi(x) = [softmax(x W1), softmax(x W2)]. Each matrix gives half of them.
inline constexpr int kCorrectionFeatures = 256;

// Return the number and the bytes of the sums of one KV head.
inline constexpr std::size_t correction_sums(int head_dim) {
  return static_cast<std::size_t>(head_dim + 1) * kCorrectionFeatures;
}
inline constexpr std::int64_t correction_bytes(int head_dim) {
  return static_cast<std::int64_t>(correction_sums(head_dim) * sizeof(float));
}

// Returns the number of weights of one map for a head size d: W1 and W2, each [d, D / 2].
inline constexpr std::size_t feature_map_weights(int head_dim) {
  return static_cast<std::size_t>(head_dim) * kCorrectionFeatures;
}

// Sets features[r] = phi(x_r). `weights` holds W1 and then W2, row-major. x is [n, d], and features is [n,
// D].
void map_features(const float* weights, MatrixView<const float> x, MatrixView<float> features);

// Adds a page's errors of K and quantized V, [n, d], except for the tokens in left_out. `weights` are those
// of phi_k. The page is summed on its own before it is added, so the relative error of the sums stays near
// 1e-7 for each page.
void add_to_sums(const float* weights, MatrixView<const float> errors, MatrixView<const float> values,
                 const TokenMask& left_out, float* sums);

// Sets out [d] to phi S, and returns phi z. phi is [D].
float multiply_by_sums(const float* sums, const float* phi, int d, float* out);

}  // namespace kvant
