// The model constant of a head's K that tells formats how to distribute bits over channels.
#pragma once

namespace kvant {

// The constant holds, for each channel [d], (E k^2 + E q^2) / 2 over the queries of the heads that read it.
// Channels that RoPE rotates together both have their sum, so a block's number is the s of Block-GTQ (arXiv
// 2606.24033, Algorithm 1).
inline constexpr const char* kChannelEnergy = "channel-energy";

}  // namespace kvant
