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

// Each step hands k.q on as the next one's product plus its own offset, so that the offsets add up.
void Transform::query(MatrixView<float> q, float* offset) const {
  if (offset != nullptr) std::fill(offset, offset + q.rows, 0.0F);
  for (const auto& step : steps_) step->query(q, offset);
}

}  // namespace kvant
