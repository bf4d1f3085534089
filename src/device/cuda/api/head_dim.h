// The head sizes that kernels are compiled for.
#pragma once

#include <type_traits>

namespace kvant::cuda {

inline constexpr int kHeadDims[] = {64, 128, 256, 512};

// What other sizes are refused with.
inline constexpr const char* kNoHeadDim = "head_dim must be 64, 128, 256 or 512";

constexpr bool is_head_dim(int d) {
  for (const int known : kHeadDims)
    if (d == known) return true;
  return false;
}

// body(constant), with a constant for a head size that is_head_dim.
template <class Body>
auto with_head_dim(int d, const Body& body) {
  switch (d) {
    case 64:
      return body(std::integral_constant<int, 64>{});
    case 128:
      return body(std::integral_constant<int, 128>{});
    case 256:
      return body(std::integral_constant<int, 256>{});
    default:
      return body(std::integral_constant<int, 512>{});
  }
}

// The same where heads of 512 have been refused, or go another way: what is left to heads of 256 serves them.
template <class Body>
auto with_head_dim_up_to_256(int d, const Body& body) {
  switch (d) {
    case 64:
      return body(std::integral_constant<int, 64>{});
    case 128:
      return body(std::integral_constant<int, 128>{});
    default:
      return body(std::integral_constant<int, 256>{});
  }
}

}  // namespace kvant::cuda
