#include "base/checksum.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace kvant {
namespace {

std::vector<std::byte> random_bytes(std::size_t n) {
  std::mt19937 random(static_cast<unsigned>(n));
  std::vector<std::byte> bytes(n);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

// Other readers of the files, such as scripts/kill-test.py, compute the checksum as checksum.h specifies. The
// values here come from such a computation with integers of any size (Python).
TEST(Checksum, IsWhatItsDescriptionSays) {
  EXPECT_EQ(checksum({}), 0xb538f5f135ceb6e9ULL);
  std::vector<std::byte> bytes(100);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
  EXPECT_EQ(checksum(bytes), 0x5d11f806ece210cfULL);
}

TEST(Checksum, SeesEveryBitAndEveryLength) {
  for (const std::size_t n : {1, 7, 8, 31, 32, 33, 200}) {
    std::vector<std::byte> bytes = random_bytes(n);
    std::set<std::uint64_t> seen = {checksum(bytes)};
    for (std::size_t bit = 0; bit < 8 * n; ++bit) {
      bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      seen.insert(checksum(bytes));
      bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    }
    for (std::size_t shorter = 0; shorter < n; ++shorter)
      seen.insert(checksum(std::span(bytes).first(shorter)));
    EXPECT_EQ(seen.size(), 1 + 9 * n) << n;
  }
}

// Simpler sums miss three kinds of damage: one top bit in two words of a lane, swapped words, and zeros at
// the end.
TEST(Checksum, SeesDamageInSeveralPlaces) {
  const std::vector<std::byte> bytes = random_bytes(256);
  std::set<std::uint64_t> seen = {checksum(bytes)};
  for (std::size_t a = 7; a < 256; a += 8) {
    for (std::size_t b = a + 8; b < 256; b += 8) {
      std::vector<std::byte> flipped = bytes, swapped = bytes;
      flipped[a] ^= std::byte{0x80};
      flipped[b] ^= std::byte{0x80};
      for (std::size_t i = 0; i < 8; ++i) std::swap(swapped[a - i], swapped[b - i]);
      seen.insert(checksum(flipped));
      seen.insert(checksum(swapped));
    }
  }
  EXPECT_EQ(seen.size(), 1 + 2 * 31 * 32 / 2);
  EXPECT_NE(checksum(std::vector<std::byte>(32)), checksum(std::vector<std::byte>(40)));
}

}  // namespace
}  // namespace kvant
