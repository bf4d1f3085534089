#include "cache/correction_state.h"

#include "base/check.h"

namespace kvant {

namespace {

std::size_t numbers(int head_dim) {
  return static_cast<std::size_t>(kCorrectionFeatures) * (head_dim + 1);
}

}  // namespace

std::int64_t correction_bytes(int head_dim) {
  return static_cast<std::int64_t>(numbers(head_dim) * sizeof(float));
}

void CorrectionState::reserve(int head_dim) {
  head_dim_ = head_dim;
  if (sums_.empty()) sums_.assign(numbers(head_dim), 0);
}

void CorrectionState::add(std::span<const float> adapter, MatrixView<const float> errors,
                          MatrixView<const float> values, const TokenMask& left_out) {
  KVANT_CHECK(adapter.size() == feature_map_weights(head_dim_), "a feature map of another head size");
  add_to_sums(adapter.data(), errors, values, left_out,
              {sums_.data(), head_dim_ + 1, sums_.data() + head_dim_, head_dim_ + 1});
}

}  // namespace kvant
