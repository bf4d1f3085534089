#include "device/cpu/kernels/tile.h"

#include <algorithm>
#include <cmath>

#include "base/softmax.h"

namespace kvant {

void PartialAttention::reset(int rows, int d) {
  max.assign(rows, kUnseen);
  sum.assign(rows, 0.0F);
  accumulator.assign(static_cast<std::size_t>(rows) * d, 0.0F);
}

void PartialAttention::raise_max(int r, float to, float rescale, int d) {
  sum[r] *= rescale;
  scale_row(accumulator.data() + static_cast<std::ptrdiff_t>(r) * d, d, rescale);
  max[r] = to;
}

void PartialAttention::merge(const PartialAttention& other, int d) {
  for (std::size_t r = 0; r < max.size(); ++r) {
    if (other.max[r] == kUnseen) continue;
    const float together = std::max(max[r], other.max[r]);
    const float mine = std::exp(max[r] - together), theirs = std::exp(other.max[r] - together);
    float* row = accumulator.data() + static_cast<std::ptrdiff_t>(r) * d;
    scale_row(row, d, mine);
    add_scaled_row(row, other.accumulator.data() + static_cast<std::ptrdiff_t>(r) * d, d, theirs);
    sum[r] = sum[r] * mine + other.sum[r] * theirs;
    max[r] = together;
  }
}

}  // namespace kvant
