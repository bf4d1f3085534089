#include "calibrate/row_gradients.h"

#include <algorithm>
#include <cmath>

#include "base/gemm.h"

namespace kvant {
namespace {

double reciprocal_rms(const float* x, int n, float epsilon) {
  double squares = 0;
  for (int i = 0; i < n; ++i) squares += static_cast<double>(x[i]) * x[i];
  return 1 / std::sqrt(squares / n + epsilon);
}

struct Activated {
  float value, slope;
};

Activated silu(float x) {
  const float sigma = 1 / (1 + std::exp(-x));
  return {x * sigma, sigma * (1 + x * (1 - sigma))};
}

Activated gelu(float x) {
  constexpr float kRoot2OverPi = 0.79788456F, kCubic = 0.044715F;
  const float t = std::tanh(kRoot2OverPi * x * (1 + kCubic * x * x));
  const float slope_inside = kRoot2OverPi * (1 + 3 * kCubic * x * x);
  return {0.5F * x * (1 + t), 0.5F * (1 + t) + 0.5F * x * (1 - t * t) * slope_inside};
}

Activated activated(GatedUnit kind, float x) {
  return kind == GatedUnit::silu ? silu(x) : gelu(x);
}

}  // namespace

void rms_norm(MatrixView<const float> x, std::span<const float> weight, float epsilon,
              MatrixView<float> out) {
  for (int r = 0; r < x.rows; ++r) {
    const auto factor = static_cast<float>(reciprocal_rms(x.row(r), x.cols, epsilon));
    for (int i = 0; i < x.cols; ++i) out.row(r)[i] = x.row(r)[i] * factor * weight[i];
  }
}

// With f = 1 / rms: dx = f w g - x f^3 mean(x w g).
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

void linear(MatrixView<const float> x, std::span<const float> weight, std::span<const float> bias,
            MatrixView<float> out) {
  gemm(x.rows, out.cols, x.cols, row_major(x.data, x.stride), transposed(weight.data(), x.cols),
       /*accumulate=*/false, out.data, out.stride);
  if (bias.empty()) return;
  for (int r = 0; r < out.rows; ++r)
    for (int i = 0; i < out.cols; ++i) out.row(r)[i] += bias[i];
}

void linear_back(MatrixView<const float> gradient, std::span<const float> weight, bool accumulate,
                 MatrixView<float> out) {
  gemm(gradient.rows, out.cols, gradient.cols, row_major(gradient.data, gradient.stride),
       row_major(weight.data(), out.cols), accumulate, out.data, out.stride);
}

void gated_unit(GatedUnit kind, MatrixView<const float> gate, MatrixView<const float> up,
                MatrixView<float> out) {
  for (int r = 0; r < gate.rows; ++r)
    for (int i = 0; i < gate.cols; ++i) out.row(r)[i] = activated(kind, gate.row(r)[i]).value * up.row(r)[i];
}

void gated_unit_back(GatedUnit kind, MatrixView<const float> gradient, MatrixView<float> gate,
                     MatrixView<float> up) {
  for (int r = 0; r < gate.rows; ++r) {
    for (int i = 0; i < gate.cols; ++i) {
      const Activated a = activated(kind, gate.row(r)[i]);
      const float g = gradient.row(r)[i];
      gate.row(r)[i] = g * up.row(r)[i] * a.slope;
      up.row(r)[i] = g * a.value;
    }
  }
}

}  // namespace kvant
