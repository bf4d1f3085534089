// Defines the limits for which kernels are compiled: head sizes, and numbers of heads and queries. Calls
// beyond these limits are refused.
#pragma once

#include <type_traits>

namespace kvant::cuda {

inline constexpr int kMaxKvHeads = 64;
inline constexpr int kMaxHeadGroups = 8;
inline constexpr int kMaxGroup = 16;  // query heads per KV head
// A launch serves at most kPaddedGroup query heads of each KV head, which are the columns of a product.
inline constexpr int kPaddedGroup = 8;
inline constexpr int kMaxQueries = 8;  // queries per sequence

inline constexpr int kHeadDims[] = {64, 128, 256, 512};

// kNoHeadDim is the reason for refusing other head sizes.
inline constexpr const char* kNoHeadDim = "head_dim must be 64, 128, 256 or 512";

constexpr bool is_head_dim(int d) {
  for (const int known : kHeadDims)
    if (d == known) return true;
  return false;
}

// Calls body(constant) with a compile-time constant for a head size for which is_head_dim() returns true.
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

// Calls body(constant) as with_head_dim() does, but no code is compiled for heads of 512 channels. The caller
// must have refused such heads or handled them elsewhere, because they would get the code for heads of 256
// channels.
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
