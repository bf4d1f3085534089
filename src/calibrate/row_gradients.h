// Maps of rows, as transformers have them beside attention, with their transposed derivatives.
#pragma once

#include <cstdint>
#include <span>

#include "base/gemm.h"
#include "base/matrix_view.h"

namespace kvant {

// out = x / rms(x) * weight, row by row; may be in place.
void rms_norm(MatrixView<const float> x, std::span<const float> weight, float epsilon, MatrixView<float> out);
// gradient: by the norm's result, becomes that by x.
void rms_norm_back(MatrixView<const float> x, std::span<const float> weight, float epsilon,
                   MatrixView<float> gradient);

// A norm of rows: what all norms of a model are. One that subtracts the mean may have biases.
struct RowNorm {
  bool subtracts_mean;
  float epsilon;

  void run(MatrixView<const float> x, std::span<const float> weight, std::span<const float> bias,
           MatrixView<float> out) const;
  void run_back(MatrixView<const float> x, std::span<const float> weight, MatrixView<float> gradient) const;
};

// out = x W^T + bias, W [out.cols, x.cols]; an empty bias is none.
void linear(MatrixView<const float> x, const PackedMatrix& transposed_weight, std::span<const float> bias,
            MatrixView<float> out);
// out = gradient W, or out += that.
void linear_back(MatrixView<const float> gradient, const PackedMatrix& weight, bool accumulate,
                 MatrixView<float> out);

// out = activation(gate) * up, with x sigma(x) (SwiGLU), the Gaussian error unit in ggml's approximation by
// tanh (GeGLU), or max(x, 0)^2. An empty up is 1 everywhere: the network has no gate, and `gate` is its only
// input.
enum class GatedUnit : std::uint8_t { silu, gelu, relu_squared };
void gated_unit(GatedUnit kind, MatrixView<const float> gate, MatrixView<const float> up,
                MatrixView<float> out);
// gradient: by the result. gate and up become the gradients by themselves; an empty up has none.
void gated_unit_back(GatedUnit kind, MatrixView<const float> gradient, MatrixView<float> gate,
                     MatrixView<float> up);

}  // namespace kvant
