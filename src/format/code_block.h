// Packs and unpacks blocks of eight B-bit codes, which fill exactly B bytes. Loops over the streams of
// bit_packing.h process whole blocks, because the compiler can unroll a loop of fixed length.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/check.h"

namespace kvant {

static_assert(std::endian::native == std::endian::little, "pages are little-endian");

inline constexpr int kCodeBlock = 8;

// Returns bits [first, first + B) of the 128-bit number whose lower half is `low` and whose upper half is
// `high`.
template <int B>
[[gnu::always_inline]] inline std::uint32_t code_at(std::uint64_t low, std::uint64_t high, int first) {
  constexpr std::uint32_t kMask = (1U << B) - 1;
  std::uint64_t shifted = 0;
  if (first >= 64) {
    shifted = high >> (first - 64);
  } else {
    shifted = low >> first;
    if (B > 8 && first > 64 - B && first > 0) shifted |= high << (64 - first);
  }
  return static_cast<std::uint32_t>(shifted) & kMask;
}

// Unpacks the block of B bytes at `packed` into codes[0 .. 7].
template <int B, class Code>
[[gnu::always_inline]] inline void unpack_block(const std::byte* packed, Code* codes) {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  std::memcpy(&low, packed, std::min(B, 8));
  if constexpr (B > 8) std::memcpy(&high, packed + 8, B - 8);
#pragma GCC unroll 8
  for (int i = 0; i < kCodeBlock; ++i) codes[i] = static_cast<Code>(code_at<B>(low, high, i * B));
}

// Packs eight codes into B bytes.
template <int B>
[[gnu::always_inline]] inline void pack_block(const std::uint16_t* codes, std::byte* packed) {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
#pragma GCC unroll 8
  for (int i = 0; i < kCodeBlock; ++i) {
    const std::uint64_t code = codes[i];
    const int first = i * B;
    if (first >= 64) {
      high |= code << (first - 64);
    } else {
      low |= code << first;
      if (B > 8 && first > 64 - B && first > 0) high |= code >> (64 - first);
    }
  }
  std::memcpy(packed, &low, std::min(B, 8));
  if constexpr (B > 8) std::memcpy(packed + 8, &high, B - 8);
}

// Calls f(std::integral_constant<int, bits>{}) for bits in 1 .. 16, so the compiler knows the width in f's
// loops. This function is always inlined, so f's loops use the instruction set of the caller.
template <class F>
[[gnu::always_inline]] inline void with_code_bits(int bits, const F& f) {
  switch (bits) {
    case 1:
      return f(std::integral_constant<int, 1>{});
    case 2:
      return f(std::integral_constant<int, 2>{});
    case 3:
      return f(std::integral_constant<int, 3>{});
    case 4:
      return f(std::integral_constant<int, 4>{});
    case 5:
      return f(std::integral_constant<int, 5>{});
    case 6:
      return f(std::integral_constant<int, 6>{});
    case 7:
      return f(std::integral_constant<int, 7>{});
    case 8:
      return f(std::integral_constant<int, 8>{});
    case 9:
      return f(std::integral_constant<int, 9>{});
    case 10:
      return f(std::integral_constant<int, 10>{});
    case 11:
      return f(std::integral_constant<int, 11>{});
    case 12:
      return f(std::integral_constant<int, 12>{});
    case 13:
      return f(std::integral_constant<int, 13>{});
    case 14:
      return f(std::integral_constant<int, 14>{});
    case 15:
      return f(std::integral_constant<int, 15>{});
    case 16:
      return f(std::integral_constant<int, 16>{});
    default:
      KVANT_CHECK(false, "codes have 1 to 16 bits");
  }
}

}  // namespace kvant
