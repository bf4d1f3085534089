// Names the model constant of a head's K that determines how the format gtq distributes bits over channels.
// Calibration makes the constant from keys and queries.
#pragma once

namespace kvant {

// The constant holds (E k^2 + E q^2) / 2 for each channel [d], over the head's keys k and the queries q that
// read the keys. Two channels that RoPE rotates together both hold the sum of their two numbers. A block's
// number is therefore the energy s of Block-GTQ (arXiv 2606.24033, Algorithm 1).
inline constexpr const char* kChannelEnergy = "channel-energy";

}  // namespace kvant
