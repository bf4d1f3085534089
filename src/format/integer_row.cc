#include "format/integer_row.h"

#include <algorithm>

#include "base/simd_clones.h"

namespace kvant {

KVANT_SIMD_CLONES void to_integer_row(const float* values, int n, float reciprocal, float* integers) {
  for (int i = 0; i < n; ++i) {
    const float x = values[i] * reciprocal;
    const float inside = std::min(std::max(x, -kLargestInteger), kLargestInteger);
    // Truncation rounds only positive numbers down. The offset of 128 makes all numbers positive, so halves
    // go up.
    integers[i] = static_cast<float>(static_cast<int>(inside + 128.5F) - 128);
  }
}

}  // namespace kvant
