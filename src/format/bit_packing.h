// Packs codes of 1 to 16 bits without padding into a little-endian bit stream: bit j of code i is bit (i *
// bits + j) of the stream. Bit k of the stream is bit (k mod 8) of byte (k / 8). All quantized formats store
// their codes in such streams.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvant {

inline constexpr int kMaxCodeBits = 16;

// Returns the size of n packed codes in bytes. Spare bits of the last byte are zero.
constexpr std::size_t packed_bytes(std::size_t n, int bits) {
  return (n * bits + 7) / 8;
}

// Packs codes [n], each below 2^bits, and writes all packed_bytes(n, bits) bytes of `packed`.
void pack_codes(const std::uint16_t* codes, std::size_t n, int bits, std::byte* packed);

// Unpacks n codes and reads exactly packed_bytes(n, bits) bytes of `packed`.
void unpack_codes(const std::byte* packed, std::size_t n, int bits, std::uint16_t* codes);

}  // namespace kvant
