// Computes the operations on rows that transformers have besides attention, and their transposed derivatives.
// HostLayerGradient puts them together.
#pragma once

#include <cstdint>
#include <span>

#include "base/gemm.h"
#include "base/matrix_view.h"

namespace kvant {

// Computes out = x / rms(x) * weight, row by row. `out` may be `x`.
void rms_norm(MatrixView<const float> x, std::span<const float> weight, float epsilon, MatrixView<float> out);
// Replaces `gradient`, the derivative by the norm's result, by the derivative by x.
void rms_norm_back(MatrixView<const float> x, std::span<const float> weight, float epsilon,
                   MatrixView<float> gradient);

// RowNorm is the kind of norm that a model uses everywhere. A norm that subtracts the mean may have biases.
struct RowNorm {
  bool subtracts_mean;
  float epsilon;

  void run(MatrixView<const float> x, std::span<const float> weight, std::span<const float> bias,
           MatrixView<float> out) const;
  void run_back(MatrixView<const float> x, std::span<const float> weight, MatrixView<float> gradient) const;
};

// Computes out = x W^T + bias with W [out.cols, x.cols]. An empty bias means none.
void linear(MatrixView<const float> x, const PackedMatrix& transposed_weight, std::span<const float> bias,
            MatrixView<float> out);
// Computes out = gradient W or, with accumulate, out += gradient W.
void linear_back(MatrixView<const float> gradient, const PackedMatrix& weight, bool accumulate,
                 MatrixView<float> out);

// Names the activations, which are x sigma(x) (SwiGLU), the Gaussian error unit in ggml's approximation by
// tanh (GeGLU), and max(x, 0)^2.
enum class GatedUnit : std::uint8_t { silu, gelu, relu_squared };
// Computes out = activation(gate) * up. If `up` is empty, the network has no gate. `gate` is then its only
// input, and up counts as 1.
void gated_unit(GatedUnit kind, MatrixView<const float> gate, MatrixView<const float> up,
                MatrixView<float> out);
// Computes the derivatives by `gate` and `up`, and stores them in `gate` and `up`. `gradient` is the
// derivative by the result. An empty `up` has no derivative.
void gated_unit_back(GatedUnit kind, MatrixView<const float> gradient, MatrixView<float> gate,
                     MatrixView<float> up);

}  // namespace kvant
