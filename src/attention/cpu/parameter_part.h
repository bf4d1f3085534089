// Parameters of equal parts of a page (CodeParameters), one after the other.
#pragma once

#include <cstddef>
#include <vector>

namespace kvant::cpu {

// Those of part i, `size` of them; null where there are none.
inline const float* part(const std::vector<float>& all, int i, int size) {
  return all.empty() ? nullptr : all.data() + static_cast<std::ptrdiff_t>(i) * size;
}

}  // namespace kvant::cpu
