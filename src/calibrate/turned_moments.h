// Second moments of queries wherever in a context they may stand.
#pragma once

#include <span>
#include <vector>

#include "base/channel_turn.h"

namespace kvant {

// The mean over p = 0 .. n_positions - 1 of R(p) M R(p)^T, where R(p) turns channels as RoPE does for p
// tokens: what moments M [d, d] of queries become that may as well stand up to n_positions later. Pairs of
// channels that turn fast lose their direction by it, those that hardly turn keep it. Calibration sees
// queries of the first thousand positions only: errors shaped by these alone are no smaller for queries at
// 8192. Channels that no turn names stand still.
std::vector<double> turned_moments(std::span<const double> moments, std::span<const ChannelTurn> turns, int d,
                                   int n_positions);

}  // namespace kvant
