// Selects numbers with masks instead of branches, because a branch would keep a loop from vectorizing.
#pragma once

#include <bit>
#include <cstdint>

namespace kvant {

// Returns x if all bits of `mask` are 1, and 0 if `mask` is 0.
inline float masked(float x, std::uint32_t mask) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & mask);
}

}  // namespace kvant
