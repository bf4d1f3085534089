// q.K and P.V in integers (TurboAttention sections 3 and 4, Algorithms 1 and 2): q, P, K and V are INT8 with
// one scale for each row or block. The integers are carried in F32, where sums below 2^24 are exact.
#pragma once

#include "attention/tile_attention.h"

namespace kvant {

// scratch.scores[r, t] = q_r . k_t. The page's K must be integral.
void score_integers(const QueryTile& tile, const PageView& page, int head_dim, TileScratch& scratch);

// accumulator [rows, d] += weights x V with the weights scratch.scores rounded to INT8 for each row and block
// of kIntegerBlock tokens. The page's V must be integral. Overwrites scratch.scores.
void mix_integers(int rows, const PageView& page, int head_dim, TileScratch& scratch, float* accumulator);

}  // namespace kvant
