// Tables in shared memory that codes are looked up in. Every lane (or every pair of lanes, for entries of 8
// bytes) has a copy of its own in banks of its own, so that look-ups never collide: entry e of lane l lies at
// byte e * 128 + l * 4 (or l % 16 * 8).
#pragma once

#include "attention/cuda/pairs/linear.cuh"

namespace kvant::cuda {

inline constexpr int kEntryStride = 128;

__device__ __forceinline__ std::uint32_t look_up_4(const unsigned char* table, std::uint32_t offset) {
  return *reinterpret_cast<const std::uint32_t*>(table + offset);
}
__device__ __forceinline__ uint2 look_up_8(const unsigned char* table, std::uint32_t offset) {
  return *reinterpret_cast<const uint2*>(table + offset);
}

// The offset of the entry whose index stands at bit `bit` of word; `lane_offset`: of the lane's copy.
template <int IndexBits>
__device__ __forceinline__ std::uint32_t entry_offset(std::uint32_t word, int bit,
                                                      std::uint32_t lane_offset) {
  constexpr std::uint32_t kMask = ((1U << IndexBits) - 1) * kEntryStride;
  const std::uint32_t shifted = bit >= 7 ? word >> (bit - 7) : word << (7 - bit);
  return (shifted & kMask) | lane_offset;
}

// The two tokens' values of two registers, channel pairs (x, y), as two registers of channels: (first,
// second) of either token.
__device__ __forceinline__ std::uint32_t low_halves(std::uint32_t first, std::uint32_t second) {
  return __byte_perm(first, second, 0x5410);
}
__device__ __forceinline__ std::uint32_t high_halves(std::uint32_t first, std::uint32_t second) {
  return __byte_perm(first, second, 0x7632);
}

}  // namespace kvant::cuda
