// A 64-bit checksum for files. It detects damage, not forgery.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvant {

// The input is read as little-endian words of 8 bytes, the last one padded with zeros. Word i goes to lane i
// % 4 as lane = rotate_left(lane + word * 0xd1342543de82ef95, 31) * 0x9e3779b97f4a7c15 (modulo 2^64). The
// lanes start as 1, 2, 3, 4. At the end a fifth lane, which starts as 5, takes the number of bytes and then
// the four lanes in the same way, and is folded once: lane ^ (lane >> 32).
//
// Every step is one-to-one both in the lane and in the word, so a change within one word is always detected,
// and other damage is missed with a probability of about 2^-64. Words are multiplied before they are added;
// otherwise the flip of one bit could be undone by that of another one, a word later.
std::uint64_t checksum(std::span<const std::byte> bytes);

}  // namespace kvant
