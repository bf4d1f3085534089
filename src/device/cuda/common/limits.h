// Defines the limits for which kernels are compiled: head sizes, and numbers of heads and queries. Calls
// beyond these limits are refused.
#pragma once

#include <type_traits>

namespace kvant::cuda {

inline constexpr int kMaxKvHeads = 64;
inline constexpr int kMaxHeadGroups = 8;
inline constexpr int kMaxGroup = 16;  // query heads per KV head
// kPaddedGroup is the number of query heads per KV head and launch, which are the columns of a product.
inline constexpr int kPaddedGroup = 8;
inline constexpr int kMaxQueries = 8;  // queries per sequence

inline constexpr int kHeadDims[] = {64, 128, 256, 512};

// kNoHeadDim is the reason for refusing other sizes.
inline constexpr const char* kNoHeadDim = "head_dim must be 64, 128, 256 or 512";

constexpr bool is_head_dim(int d) {
  for (const int known : kHeadDims)
    if (d == known) return true;
  return false;
}

// Calls body(constant) with a constant for a head size for which is_head_dim holds.
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

// Calls body as with_head_dim does, where heads of 512 channels have been refused or are handled elsewhere.
// No code is compiled for heads of 512 channels, which would get the code for heads of 256.
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
