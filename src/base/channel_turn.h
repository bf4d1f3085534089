// ChannelTurn describes how rotary position embedding (RoPE) rotates two channels. The model states its
// rotations in this form, and calibration and the page metric of format/page_metric.h read them.
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
