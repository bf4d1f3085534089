// Attention of a prompt's queries in 8 bits: TurboAttention's FlashQ (section 3, Algorithm 1), with a scale
// for each query and each token where the paper has one for 64 of them, so that a prompt's bits do not depend
// on how it is cut.
//
// Queries, keys and values are whole numbers of at most 127, times a scale of their row. A value's scale
// joins its weight, and these products are whole numbers of at most 255, times a scale of the query and the
// page. Weights are summed up as they are.
#pragma once

#include <span>

#include "device/cpu/kernels/tile.h"
#include "device/cpu/kernels/tile_attention.h"
#include "format/page_view.h"

namespace kvant {

// Numbers of queries, keys and values, and of weights.
inline constexpr float kByteNumberMax = 127, kByteWeightMax = 255;

// Rounds each of n rows of d values to whole numbers; scales[i]: what those of row i are to be multiplied
// with (1 where all are 0).
void round_rows_to_bytes(float* rows, int n, int d, float* scales);

// Adds `pages` to `partial`, in F32 products of whole numbers, which are exact. All rules but `products` are
// obeyed; softmax is exact or sas.
void attend_in_bytes(const QueryTile& tile, std::span<const PageView> pages, const AttentionRules& rules,
                     TileScratch& scratch, PartialAttention& partial);

}  // namespace kvant
