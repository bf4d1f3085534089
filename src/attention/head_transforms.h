// A side's transforms in rows of all heads of a layer.
#pragma once

#include "base/matrix_view.h"
#include "recipe/plan.h"

namespace kvant {

// Calls apply(transform, columns) for each head of rows [n, heads * head_dim]: with the transform of its KV
// head, and the head's columns [n, head_dim]. Heads are KV heads, or query heads, group by group.
template <class Apply>
void for_each_head_transform(const Plan& plan, int layer, Side side, MatrixView<float> rows,
                             const Apply& apply) {
  const int d = plan.geometry.dim(layer), n_heads = rows.cols / d;
  const int group = n_heads / plan.geometry.kv_heads(layer);
  for (int head = 0; head < n_heads; ++head) {
    const Transform& transform = plan.head(layer, head / group).side(side).transform;
    if (transform.identity()) continue;
    apply(transform, MatrixView<float>(rows.data + std::ptrdiff_t{head} * d, rows.rows, d, rows.stride));
  }
}

}  // namespace kvant
