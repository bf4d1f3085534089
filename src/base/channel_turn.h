// ChannelTurn: the rotation of two channels by rotary position embedding (RoPE).
#pragma once

#include <cstdint>

namespace kvant {

// Channels (first, second) rotate together by `step` / 2^64 of a whole turn per token.
struct ChannelTurn {
  std::int32_t first, second;
  std::uint64_t step;
  bool operator==(const ChannelTurn&) const = default;
};

}  // namespace kvant
