// Reads look-up tables in shared memory. Every lane has its own copy of the table in its own banks, so
// look-ups never conflict. For entries of 8 bytes, a copy belongs to two lanes. Entry e of lane l lies at
// byte e * 128 + l * 4, or at e * 128 + l % 16 * 8 for entries of 8 bytes.
#pragma once

#include "device/cuda/pairs/linear.cuh"

namespace kvant::cuda {

inline constexpr int kEntryStride = 128;

__device__ __forceinline__ std::uint32_t look_up_4(const unsigned char* table, std::uint32_t offset) {
  return *reinterpret_cast<const std::uint32_t*>(table + offset);
}
__device__ __forceinline__ uint2 look_up_8(const unsigned char* table, std::uint32_t offset) {
  return *reinterpret_cast<const uint2*>(table + offset);
}

// Returns the offset of an entry. The entry's index is byte `byte` of `word`, or lies in that byte from bit
// `bit` on, with zeros around the index. lane_offset is the offset of the lane's copy of the table, and
// entries lie `Stride` bytes apart. The function takes one instruction of the multiplication unit. A shift
// and a mask would take two instructions of the integer unit, which is the bottleneck.
template <int Stride = kEntryStride>
__device__ __forceinline__ std::uint32_t entry_of_byte(std::uint32_t word, int byte,
                                                       std::uint32_t lane_offset, int bit = 0) {
  static_assert(Stride <= 128);  // the factors of the dot product are bytes
  return __dp4a(word, static_cast<std::uint32_t>(Stride >> bit) << (8 * byte), lane_offset);
}

// low_halves() and high_halves() rearrange the values of two tokens. Each argument holds two channels (x, y)
// of one token. low_halves() returns channel x of both tokens, and high_halves() returns channel y of both.
__device__ __forceinline__ std::uint32_t low_halves(std::uint32_t first, std::uint32_t second) {
  return __byte_perm(first, second, 0x5410);
}
__device__ __forceinline__ std::uint32_t high_halves(std::uint32_t first, std::uint32_t second) {
  return __byte_perm(first, second, 0x7632);
}

}  // namespace kvant::cuda
