// q and P as integers with one scale (TurboAttention sections 3 and 4, Algorithms 1 and 2).
#pragma once

#include "attention/tile.h"

namespace kvant {

// The largest integer: the paper's max / 119 leaves room below 127.
inline constexpr float kIntegerMax = 119.0F;

// Rounds n values to integers in +-kIntegerMax; returns the scale (0 where all values are tiny).
float round_to_integers(float* x, int n);

// Rounds each row of tile.q to integers in +-kIntegerMax and sets tile.q_scale. A scale belongs to one query
// of one head (the paper's tile of 64 queries would make the outputs depend on how the prompt was cut).
void quantize_queries(QueryTile& tile, int head_dim);

}  // namespace kvant
