// LayerGradient: what a layer of a transformer stored of a whole context, and the derivative of a loss by it.
#pragma once

#include <vector>

#include "base/geometry.h"
#include "base/matrix_view.h"
#include "calibrate/head_attention.h"

namespace kvant {

class LayerGradient {
 public:
  virtual ~LayerGradient() = default;

  // [n_rows, head_dim]: K after RoPE, or V.
  virtual MatrixView<const float> stored(int kv_head, Side side) const = 0;
  // Of a query head; its matrices are this object's.
  virtual HeadAttention attention(int head) const = 0;
  // [n_rows, head_dim]: the gradient by what that gives.
  virtual MatrixView<const float> output_gradient(int head) const = 0;
  // Second moments [d, d] of the queries of a KV head, turned back to how they are before RoPE, each times
  // the length of the derivative by its scores with sealed tokens, the sink's left out.
  virtual std::vector<double> query_moments(int kv_head) const = 0;
};

}  // namespace kvant
