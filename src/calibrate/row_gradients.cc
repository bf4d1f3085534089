#include "calibrate/row_gradients.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/simd_clones.h"
#include "base/softmax.h"

namespace kvant {
namespace {

double reciprocal_rms(const float* x, int n, float epsilon) {
  double squares = 0;
  for (int i = 0; i < n; ++i) squares += static_cast<double>(x[i]) * x[i];
  return 1 / std::sqrt(squares / n + epsilon);
}

// SiLU and the Gaussian error unit have the form x sigma(u), where sigma is the logistic function. For SiLU,
// u = x. For the Gaussian error unit, u = 2 sqrt(2 / pi) (x + .044715 x^3), because (1 + tanh(y)) / 2 is
// sigma(2 y).
constexpr float kLinear = 2 * 0.79788456F, kCubic = 0.044715F;

KVANT_SIMD_CLONES void find_arguments(GatedUnit kind, const float* x, int n, float* u) {
  for (int i = 0; i < n; ++i)
    u[i] = kind == GatedUnit::silu ? x[i] : kLinear * x[i] * (1 + kCubic * x[i] * x[i]);
}

KVANT_SIMD_CLONES void negative_sizes(const float* u, int n, float* sizes) {
  for (int i = 0; i < n; ++i) sizes[i] = -std::abs(u[i]);
}

// Replaces `exponentials`, which hold exp(-|u|), by sigma(u). exp(-|u|) never overflows.
KVANT_SIMD_CLONES void sigmas_of(const float* u, int n, float* exponentials) {
  for (int i = 0; i < n; ++i) {
    const float e = exponentials[i];
    exponentials[i] = (u[i] < 0 ? e : 1.0F) / (1 + e);
  }
}

// Computes sigma(u) [n] of a row. For relu_squared, computes max(x, 0), which has the role of sigma(u).
void find_sigmas(GatedUnit kind, const float* x, int n, std::vector<float>& sigmas) {
  std::vector<float> u(n);
  sigmas.resize(n);
  if (kind == GatedUnit::relu_squared) {
    for (int i = 0; i < n; ++i) sigmas[i] = std::max(x[i], 0.0F);
    return;
  }
  find_arguments(kind, x, n, u.data());
  negative_sizes(u.data(), n, sigmas.data());
  exp_row(sigmas.data(), n, 0);
  sigmas_of(u.data(), n, sigmas.data());
}

KVANT_SIMD_CLONES void gate_row(const float* x, const float* sigmas, const float* up, int n, float* out) {
  for (int i = 0; i < n; ++i) out[i] = x[i] * sigmas[i] * up[i];
}

KVANT_SIMD_CLONES void gate_row_back(GatedUnit kind, const float* gradient, const float* sigmas, int n,
                                     float* gate, float* up) {
  for (int i = 0; i < n; ++i) {
    const float x = gate[i], sigma = sigmas[i];
    if (kind == GatedUnit::relu_squared) {
      gate[i] = gradient[i] * up[i] * 2 * sigma;
      up[i] = gradient[i] * x * sigma;
      continue;
    }
    const float du = kind == GatedUnit::silu ? 1.0F : kLinear * (1 + 3 * kCubic * x * x);
    gate[i] = gradient[i] * up[i] * sigma * (1 + x * (1 - sigma) * du);
    up[i] = gradient[i] * x * sigma;
  }
}

}  // namespace

void rms_norm(MatrixView<const float> x, std::span<const float> weight, float epsilon,
              MatrixView<float> out) {
  for (int r = 0; r < x.rows; ++r) {
    const auto factor = static_cast<float>(reciprocal_rms(x.row(r), x.cols, epsilon));
    for (int i = 0; i < x.cols; ++i) out.row(r)[i] = x.row(r)[i] * factor * weight[i];
  }
}

// With f = 1 / rms, the derivative is dx = f w g - x f^3 mean(x w g).
void rms_norm_back(MatrixView<const float> x, std::span<const float> weight, float epsilon,
                   MatrixView<float> gradient) {
  for (int r = 0; r < x.rows; ++r) {
    const float* from = x.row(r);
    float* g = gradient.row(r);
    const double factor = reciprocal_rms(from, x.cols, epsilon);
    double along = 0;
    for (int i = 0; i < x.cols; ++i) along += static_cast<double>(from[i]) * weight[i] * g[i];
    const auto f = static_cast<float>(factor);
    const auto back = static_cast<float>(factor * factor * factor * along / x.cols);
    for (int i = 0; i < x.cols; ++i) g[i] = f * weight[i] * g[i] - back * from[i];
  }
}

namespace {
void subtract_mean(const float* x, int n, float* out) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += x[i];
  const auto mean = static_cast<float>(sum / n);
  for (int i = 0; i < n; ++i) out[i] = x[i] - mean;
}
}  // namespace

// A norm that subtracts the mean equals an RMS norm of the values minus their mean.
void RowNorm::run(MatrixView<const float> x, std::span<const float> weight, std::span<const float> bias,
                  MatrixView<float> out) const {
  if (!subtracts_mean) return rms_norm(x, weight, epsilon, out);
  for (int r = 0; r < x.rows; ++r) subtract_mean(x.row(r), x.cols, out.row(r));
  rms_norm(out, weight, epsilon, out);
  if (bias.empty()) return;
  for (int r = 0; r < out.rows; ++r)
    for (int i = 0; i < out.cols; ++i) out.row(r)[i] += bias[i];
}

void RowNorm::run_back(MatrixView<const float> x, std::span<const float> weight,
                       MatrixView<float> gradient) const {
  if (!subtracts_mean) return rms_norm_back(x, weight, epsilon, gradient);
  std::vector<float> memory(static_cast<std::size_t>(x.rows) * x.cols);
  const MatrixView<float> centred(memory.data(), x.rows, x.cols);
  for (int r = 0; r < x.rows; ++r) subtract_mean(x.row(r), x.cols, centred.row(r));
  rms_norm_back(centred, weight, epsilon, gradient);
  for (int r = 0; r < x.rows; ++r) subtract_mean(gradient.row(r), x.cols, gradient.row(r));
}

void linear(MatrixView<const float> x, const PackedMatrix& transposed_weight, std::span<const float> bias,
            MatrixView<float> out) {
  gemm(x.rows, out.cols, row_major(x.data, x.stride), transposed_weight, /*accumulate=*/false, out.data,
       out.stride);
  if (bias.empty()) return;
  for (int r = 0; r < out.rows; ++r)
    for (int i = 0; i < out.cols; ++i) out.row(r)[i] += bias[i];
}

void linear_back(MatrixView<const float> gradient, const PackedMatrix& weight, bool accumulate,
                 MatrixView<float> out) {
  gemm(gradient.rows, out.cols, row_major(gradient.data, gradient.stride), weight, accumulate, out.data,
       out.stride);
}

void gated_unit(GatedUnit kind, MatrixView<const float> gate, MatrixView<const float> up,
                MatrixView<float> out) {
  std::vector<float> sigmas;
  const std::vector<float> ones(up.data == nullptr ? gate.cols : 0, 1.0F);
  for (int r = 0; r < gate.rows; ++r) {
    find_sigmas(kind, gate.row(r), gate.cols, sigmas);
    gate_row(gate.row(r), sigmas.data(), up.data == nullptr ? ones.data() : up.row(r), gate.cols, out.row(r));
  }
}

void gated_unit_back(GatedUnit kind, MatrixView<const float> gradient, MatrixView<float> gate,
                     MatrixView<float> up) {
  std::vector<float> sigmas, ones;
  for (int r = 0; r < gate.rows; ++r) {
    find_sigmas(kind, gate.row(r), gate.cols, sigmas);
    if (up.data == nullptr) ones.assign(gate.cols, 1.0F);  // the previous row has left a gradient in `ones`
    gate_row_back(kind, gradient.row(r), sigmas.data(), gate.cols, gate.row(r),
                  up.data == nullptr ? ones.data() : up.row(r));
  }
}

}  // namespace kvant
