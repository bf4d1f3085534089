// What formats that give channels unlike widths read (format/channel_energy.h).
#pragma once

#include <span>
#include <vector>

#include "base/channel_turn.h"
#include "base/matrix_view.h"

namespace kvant {

// Of each channel the mean of its square over keys [n, d] and that over queries [m, d], halved and added up,
// n, m > 0: [d]. The two channels of a turn both get the sum of theirs (Block-GTQ, arXiv 2606.24033, section
// 3).
std::vector<float> channel_energies(MatrixView<const float> keys, MatrixView<const float> queries,
                                    std::span<const ChannelTurn> turns);

}  // namespace kvant
