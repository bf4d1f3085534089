// Computes q.K and P.V in integers (TurboAttention sections 3 and 4, Algorithms 1 and 2). q, P, K and V are
// INT8 with one scale for each row or block. F32 carries the integers, because its sums below 2^24 are exact.
#pragma once

#include "device/cpu/kernels/tile.h"
#include "device/cpu/kernels/tile_attention.h"

namespace kvant {

// The largest integer is 119, because the paper's max / 119 leaves room below 127.
inline constexpr float kIntegerMax = 119.0F;

// Rounds n values to integers in +-kIntegerMax. Returns the scale, or 0 if all values are tiny.
float round_to_integers(float* x, int n);

// Rounds each row of tile.q to integers in +-kIntegerMax and sets tile.q_scale. Each query of each head has a
// scale of its own. With the paper's tile of 64 queries, the outputs would depend on how the prompt was cut.
void quantize_queries(QueryTile& tile, int head_dim);

// Sets scratch.scores[r, t] = q_r . k_t. The page's K must be integral.
void score_integers(const QueryTile& tile, const PageView& page, int head_dim, TileScratch& scratch);

// Adds weights x V to accumulator [rows, d]. The weights are scratch.scores, rounded to INT8 for each row and
// block of kIntegerBlock tokens. The page's V must be integral. The call overwrites scratch.scores.
void mix_integers(int rows, const PageView& page, int head_dim, TileScratch& scratch, float* accumulator);

}  // namespace kvant
