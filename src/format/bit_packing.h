// Codes of 1 to 16 bits, packed without padding into a little-endian bit stream: bit j of code i is bit
// (i * bits + j) of the stream, and bit k of the stream is bit (k mod 8) of byte (k / 8).
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvant {

// The widest code.
inline constexpr int kMaxCodeBits = 16;

// Bytes of n codes; the last byte's spare bits are zero.
constexpr std::size_t packed_bytes(std::size_t n, int bits) {
  return (n * bits + 7) / 8;
}

// codes: [n], each below 2^bits. packed: packed_bytes(n, bits) bytes, all of them written.
void pack_codes(const std::uint16_t* codes, std::size_t n, int bits, std::byte* packed);

// The inverse. Reads packed_bytes(n, bits) bytes and no further.
void unpack_codes(const std::byte* packed, std::size_t n, int bits, std::uint16_t* codes);

}  // namespace kvant
