// A turn of two channels as rotary position embedding makes it.
#pragma once

#include <cstdint>

namespace kvant {

// Channels (first, second) turn together: by `step` / 2^64 of a whole turn for each token.
struct ChannelTurn {
  std::int32_t first, second;
  std::uint64_t step;
  bool operator==(const ChannelTurn&) const = default;
};

}  // namespace kvant
