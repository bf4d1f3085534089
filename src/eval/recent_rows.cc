#include "eval/recent_rows.h"

#include <algorithm>

#include "base/check.h"
#include "base/float16.h"

namespace kvant {

RecentRows::RecentRows(int capacity, int head_dim)
    : capacity_(capacity),
      head_dim_(head_dim),
      k_(static_cast<std::size_t>(capacity) * head_dim),
      v_(static_cast<std::size_t>(capacity) * head_dim) {}

void RecentRows::go_to(int token) {
  if (token < first_ || token > end_) first_ = token;
  end_ = token;
}

void RecentRows::add(const float* k, const float* v) {
  const std::size_t row = static_cast<std::size_t>(end_ % capacity_) * head_dim_;
  bf16_row_from_float(k, k_.data() + row, head_dim_);
  bf16_row_from_float(v, v_.data() + row, head_dim_);
  ++end_;
  first_ = std::max(first_, end_ - capacity_);
}

void RecentRows::read(int first, int n, float* k, float* v) const {
  KVANT_CHECK(first >= first_ && first + n <= end_, "tokens that are not kept");
  for (int i = 0; i < n; ++i) {
    const std::size_t row = static_cast<std::size_t>((first + i) % capacity_) * head_dim_;
    const auto to = static_cast<std::ptrdiff_t>(i) * head_dim_;
    float_row_from_bf16(k_.data() + row, k + to, head_dim_);
    float_row_from_bf16(v_.data() + row, v + to, head_dim_);
  }
}

}  // namespace kvant
