#include "transform/transform.h"

#include <algorithm>

namespace kvant {

std::string transform_constant_name(std::span<const std::string> names, std::size_t index) {
  std::string joined = names[0];
  for (std::size_t i = 1; i <= index; ++i) joined += "+" + names[i];
  return joined;
}

Result<Transform> Transform::make(std::span<const std::string> names, int head_dim,
                                  const HeadConstants& constants) {
  Transform transform;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const TransformKind* kind = find_transform_kind(names[i]);
    if (kind == nullptr) return error("unknown transform '{}'", names[i]);
    auto step = kind->make(head_dim, constants, transform_constant_name(names, i));
    if (!step.ok()) return step.error();
    transform.steps_.push_back(std::move(step).value());
  }
  return transform;
}

void Transform::forward(MatrixView<float> x) const {
  for (const auto& step : steps_) step->forward(x);
}

void Transform::inverse(MatrixView<float> x) const {
  for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) (*step)->inverse(x);
}

// For every step, k.q is the product after the step plus the offset of the step. The offsets of all steps
// therefore add up.
void Transform::query(MatrixView<float> q, float* offset) const {
  if (offset != nullptr) std::fill(offset, offset + q.rows, 0.0F);
  for (const auto& step : steps_) step->query(q, offset);
}

// forward() turns unit rows into rows of A + b, and a row of zeros into b, which gives A.
void Transform::inverse_query(MatrixView<float> q) const {
  if (identity()) return;
  const int d = q.cols;
  std::vector<float> units(static_cast<std::size_t>(d + 1) * d, 0.0F);
  for (int c = 0; c < d; ++c) units[static_cast<std::ptrdiff_t>(c) * d + c] = 1;
  const MatrixView<float> rows(units.data(), d + 1, d);
  forward(rows);
  const float* b = rows.row(d);
  std::vector<float> transformed(d);
  for (int r = 0; r < q.rows; ++r) {
    std::copy_n(q.row(r), d, transformed.begin());
    for (int c = 0; c < d; ++c) {
      double sum = 0;
      for (int i = 0; i < d; ++i) sum += double{transformed[i]} * (double{rows.row(c)[i]} - b[i]);
      q.row(r)[c] = static_cast<float>(sum);
    }
  }
}

}  // namespace kvant
