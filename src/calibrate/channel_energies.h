// Computes channel energies. Some formats use the energies to give channels different widths
// (format/channel_energy.h). A wide channel costs more bits, so such formats need to know which channels are
// wide.
#pragma once

#include <span>
#include <vector>

#include "base/channel_turn.h"
#include "base/matrix_view.h"

namespace kvant {

// Returns an energy for each of the d channels. The energy is the average of two mean squares, over keys [n,
// d] and over queries [m, d]; n, m > 0. Both channels of a RoPE pair get the sum of the pair's values
// (Block-GTQ, arXiv 2606.24033, section 3).
std::vector<float> channel_energies(MatrixView<const float> keys, MatrixView<const float> queries,
                                    std::span<const ChannelTurn> turns);

}  // namespace kvant
