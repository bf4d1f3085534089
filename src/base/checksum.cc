#include "base/checksum.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace kvant {
namespace {

static_assert(std::endian::native == std::endian::little, "words are little-endian");

using Lanes = std::array<std::uint64_t, 4>;
constexpr std::size_t kBlock = sizeof(Lanes);

std::uint64_t mixed(std::uint64_t lane, std::uint64_t word) {
  return std::rotl(lane + word * 0xd1342543de82ef95, 31) * 0x9e3779b97f4a7c15;
}

void mix_block(Lanes& lanes, const std::byte* block) {
  Lanes words;
  std::memcpy(words.data(), block, kBlock);
  for (std::size_t i = 0; i < lanes.size(); ++i) lanes[i] = mixed(lanes[i], words[i]);
}

}  // namespace

std::uint64_t checksum(std::span<const std::byte> bytes) {
  Lanes lanes{1, 2, 3, 4};
  std::size_t at = 0;
  for (; bytes.size() - at >= kBlock; at += kBlock) mix_block(lanes, bytes.data() + at);
  // Missing words can be skipped because the checksum includes the number of bytes.
  for (std::size_t lane = 0; at < bytes.size(); at += 8, ++lane) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min<std::size_t>(8, bytes.size() - at));
    lanes[lane] = mixed(lanes[lane], word);
  }
  std::uint64_t all = mixed(5, bytes.size());
  for (const std::uint64_t lane : lanes) all = mixed(all, lane);
  return all ^ (all >> 32);
}

}  // namespace kvant
