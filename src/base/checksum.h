// Computes a 64-bit checksum for session files and other files that kvant writes. The checksum detects
// damage, not forgery.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvant {

// Computes the checksum of `bytes`, which are read as little-endian words of 8 bytes, the last one padded
// with zeros. Word i goes to lane i % 4: lane = rotate_left(lane + word * 0xd1342543de82ef95, 31) *
// 0x9e3779b97f4a7c15 (modulo 2^64). The lanes start as 1, 2, 3, 4. At the end a fifth lane, which starts as
// 5, takes the number of bytes and then the four lanes in the same way. The result is lane ^ (lane >> 32) of
// the fifth lane.
//
// Every step is one-to-one both in the lane and in the word, so a change within one word is always detected.
// Other damage is missed with a probability of about 2^-64. Words are multiplied before the addition.
// Otherwise a flipped bit in a later word could undo the flip of one bit.
std::uint64_t checksum(std::span<const std::byte> bytes);

}  // namespace kvant
