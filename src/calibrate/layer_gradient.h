// LayerGradient gives access to the K and V that a layer stored for a whole context, and to the derivative of
// a loss by them. Sensitivities and metrics are computed from these values, whether the layer ran on the CPU
// or on a device.
#pragma once

#include <vector>

#include "base/geometry.h"
#include "base/matrix_view.h"
#include "calibrate/head_attention.h"

namespace kvant {

class LayerGradient {
 public:
  virtual ~LayerGradient() = default;

  // Returns K after RoPE, or V, as [n_rows, head_dim].
  virtual MatrixView<const float> stored(int kv_head, Side side) const = 0;
  // Returns the attention of a query head. The attention's matrices belong to this object.
  virtual HeadAttention attention(int head) const = 0;
  // Returns the gradient by the outputs of a query head's attention, [n_rows, head_dim].
  virtual MatrixView<const float> output_gradient(int head) const = 0;
  // Returns the second moments [d, d] of a KV head's queries before RoPE. Each query is weighted by the norm
  // of the loss's derivative by its scores with sealed tokens, except the sink's.
  virtual std::vector<double> query_moments(int kv_head) const = 0;
};

}  // namespace kvant
