#include "calibrate/adapter_loss.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/gemm.h"
#include "base/simd_clones.h"
#include "base/softmax.h"

namespace kvant {
namespace {

// Turn says which factor of a product a b is transposed. All matrices are row-major [rows, cols].
enum class Turn { none, first, second };

struct Matrix {
  const float* data;
  int rows, cols;
  int stride;
};

// Computes a product into `out`, whose rows are out_stride values apart.
void multiply(const Matrix& a, const Matrix& b, Turn turn, float* out, int out_stride) {
  const bool turn_a = turn == Turn::first;
  const bool turn_b = turn == Turn::second;
  const int m = turn_a ? a.cols : a.rows;
  const int k = turn_a ? a.rows : a.cols;
  const int n = turn_b ? b.rows : b.cols;
  gemm(m, n, k, turn_a ? transposed(a.data, a.stride) : row_major(a.data, a.stride),
       turn_b ? transposed(b.data, b.stride) : row_major(b.data, b.stride), /*accumulate=*/false, out,
       out_stride);
}

// Computes the features [rows, D] of x [rows, d] with weights [2][d][D / 2].
void map_rows(const float* x, int rows, int d, const float* weights, int n_features, float* features) {
  const int half = n_features / 2;
  for (int part = 0; part < 2; ++part) {
    const float* w = weights + static_cast<std::ptrdiff_t>(part) * d * half;
    multiply({x, rows, d, d}, {w, d, half, half}, Turn::none, features + part * half, n_features);
    for (int r = 0; r < rows; ++r) {
      float* y = features + static_cast<std::ptrdiff_t>(r) * n_features + part * half;
      scale_row(y, half, 1.0F / exp_row(y, half, max_row(y, half)));
    }
  }
}

// Computes the backward pass of phi = softmax(y) in place: dy = phi (g - phi . g).
KVANT_SIMD_CLONES void through_softmax(const float* phi, int n, float* g) {
  float dot = 0;
  for (int j = 0; j < n; ++j) dot += phi[j] * g[j];
  for (int j = 0; j < n; ++j) g[j] = phi[j] * (g[j] - dot);
}

// Computes the derivatives by the weights [2][d][D / 2] from the derivatives by the features, which are
// overwritten.
void map_rows_back(const float* x, int rows, int d, const float* features, int n_features,
                   float* feature_gradient, float* weight_gradient) {
  const int half = n_features / 2;
  for (int part = 0; part < 2; ++part) {
    for (int r = 0; r < rows; ++r) {
      const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(r) * n_features + part * half;
      through_softmax(features + at, half, feature_gradient + at);
    }
    multiply({x, rows, d, d}, {feature_gradient + part * half, rows, half, n_features}, Turn::first,
             weight_gradient + static_cast<std::ptrdiff_t>(part) * d * half, half);
  }
}

// Returns sum_i A_i log(A_i / w_i) + log Z of one query. `targets` are A, `corrected` [n] are w, and Z is the
// sum of w.
double divergence(const float* targets, const float* corrected, int n) {
  double loss = 0;
  double sum = 0;
  for (int i = 0; i < n; ++i) {
    sum += corrected[i];
    if (targets[i] > 0) loss += targets[i] * std::log(targets[i] / std::max(corrected[i], 1e-37F));
  }
  return loss + std::log(sum);
}

// Computes w <- u + c f for the corrected keys [first, end), and w <- u for all other keys. `f` holds f on
// entry and w on return.
void add_correction(const float* exponentials, float c, int first, int end, int n, float* f) {
  for (int i = 0; i < first; ++i) f[i] = exponentials[i];
  for (int i = first; i < end; ++i) f[i] = exponentials[i] + c * f[i];
  for (int i = end; i < n; ++i) f[i] = exponentials[i];
}

// Replaces w by the derivative of the loss with respect to phi_q . phi_k. The derivative is c (1 / Z - A / w)
// for corrected keys and 0 for all other keys.
KVANT_SIMD_CLONES void differentiate(const float* targets, float c, float factor, int first, int end, int n,
                                     float* w) {
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += w[i];
  const float scale = c * factor;
  const float inverse = 1 / sum;
  for (int i = 0; i < first; ++i) w[i] = 0;
  for (int i = first; i < end; ++i) w[i] = scale * (inverse - targets[i] / std::max(w[i], 1e-37F));
  for (int i = end; i < n; ++i) w[i] = 0;
}

}  // namespace

double uncorrected_loss(const AdapterContext& context) {
  const int rows = static_cast<int>(context.scale.size());
  double loss = 0;
  for (int r = 0; r < rows; ++r) {
    const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(r) * context.n;
    loss += divergence(context.targets.data() + at, context.exponentials.data() + at, context.n);
  }
  return loss / rows;
}

double adapter_loss(const AdapterContext& context, const AdapterWeights& weights, int features,
                    AdapterWeights* gradient) {
  const int d = context.head_dim;
  const int n = context.n;
  const int m = context.m;
  const int rows = static_cast<int>(context.scale.size());
  const std::ptrdiff_t map_size = static_cast<std::ptrdiff_t>(d) * features;
  KVANT_CHECK(static_cast<std::ptrdiff_t>(weights.key.size()) == map_size, "adapters of a different size");

  const int n_corrected = context.end.back();
  std::vector<float> phi_k(static_cast<std::size_t>(n_corrected) * features);
  map_rows(context.errors.data(), n_corrected, d, weights.key.data(), features, phi_k.data());
  std::vector<float> phi_q(static_cast<std::size_t>(rows) * features);
  for (int g = 0; g < rows / m; ++g) {
    map_rows(context.queries.data() + static_cast<std::ptrdiff_t>(g) * m * d, m, d,
             weights.query.data() + g * map_size, features,
             phi_q.data() + static_cast<std::ptrdiff_t>(g) * m * features);
  }
  std::vector<float> w(static_cast<std::size_t>(rows) * n);
  multiply({phi_q.data(), rows, features, features}, {phi_k.data(), n_corrected, features, features},
           Turn::second, w.data(), n);
  double loss = 0;
  for (int r = 0; r < rows; ++r) {
    float* row = w.data() + static_cast<std::ptrdiff_t>(r) * n;
    const float* targets = context.targets.data() + static_cast<std::ptrdiff_t>(r) * n;
    const int first = context.first[r % m];
    const int end = context.end[r % m];
    add_correction(context.exponentials.data() + static_cast<std::ptrdiff_t>(r) * n, context.scale[r], first,
                   end, n, row);
    loss += divergence(targets, row, n);
    if (gradient != nullptr)
      differentiate(targets, context.scale[r], 1.0F / static_cast<float>(rows), first, end, n, row);
  }
  if (gradient == nullptr) return loss / rows;

  gradient->key.resize(weights.key.size());
  gradient->query.resize(weights.query.size());
  std::vector<float> back(phi_q.size());
  multiply({w.data(), rows, n_corrected, n}, {phi_k.data(), n_corrected, features, features}, Turn::none,
           back.data(), features);
  for (int g = 0; g < rows / m; ++g) {
    const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(g) * m;
    map_rows_back(context.queries.data() + at * d, m, d, phi_q.data() + at * features, features,
                  back.data() + at * features, gradient->query.data() + g * map_size);
  }
  back.resize(phi_k.size());
  multiply({w.data(), rows, n_corrected, n}, {phi_q.data(), rows, features, features}, Turn::first,
           back.data(), features);
  map_rows_back(context.errors.data(), n_corrected, d, phi_k.data(), features, back.data(),
                gradient->key.data());
  return loss / rows;
}

}  // namespace kvant
