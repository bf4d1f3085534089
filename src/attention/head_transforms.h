// Applies a side's transforms to rows that hold all heads of a layer side by side.
#pragma once

#include "base/matrix_view.h"
#include "recipe/plan.h"

namespace kvant {

// Calls apply(transform, columns) for each head of rows [n, heads * head_dim]. `transform` belongs to the
// head's KV head, and `columns` are the head's columns [n, head_dim]. The heads are KV heads, or query heads
// in groups by KV head. Identity transforms are skipped.
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
