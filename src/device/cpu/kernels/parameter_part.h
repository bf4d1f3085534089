// Gives access to the parameters of equal parts of a page, which lie one after the other (CodeParameters).
#pragma once

#include <cstddef>
#include <vector>

namespace kvant::cpu {

// Returns the `size` parameters of part i, or null if there are no parameters.
inline const float* part(const std::vector<float>& all, int i, int size) {
  return all.empty() ? nullptr : all.data() + static_cast<std::ptrdiff_t>(i) * size;
}

}  // namespace kvant::cpu
