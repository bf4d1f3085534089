// A checksum of 64 bits for what lies on a disk: against damage, not against forgery.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvant {

// Of the words of 8 bytes, little-endian, the last one filled up with zeros: word i goes to lane i % 4 as
// lane = rotate_left(lane + word * 0xd1342543de82ef95, 31) * 0x9e3779b97f4a7c15 (modulo 2^64). The lanes
// start as 1, 2, 3, 4; in the end a fifth one, which starts as 5, takes the number of bytes and then the four
// in the same way, and is folded once: lane ^ (lane >> 32).
//
// Every step is one-to-one both in the lane and in the word, so a change within one word never goes unseen,
// and any other damage with a probability of about 2^-64. Words are multiplied before they are added: else
// the flip of one bit could be undone by that of another one, a word later.
std::uint64_t checksum(std::span<const std::byte> bytes);

}  // namespace kvant
