// The constant of a head's K by which formats give channels unlike widths.
#pragma once

namespace kvant {

// [d], of each channel (E k^2 + E q^2) / 2, over the queries of the heads that read it; channels that RoPE
// turns together have their sum. So a block's number is the s of Block-GTQ (arXiv 2606.24033, Algorithm 1).
inline constexpr const char* kChannelEnergy = "channel-energy";

}  // namespace kvant
