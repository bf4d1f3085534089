// Attends with a prompt's queries in 8 bits, by TurboAttention's FlashQ (section 3, Algorithm 1). Each query
// and each token has a scale of its own, where the paper has one scale for 64 of them. So the bits of a
// prompt do not depend on how the prompt is cut into steps.
//
// Queries, keys and values are whole numbers of at most 127, times a scale of their row. The scale of a value
// joins the value's weight. The products of the two are whole numbers of at most 255, times a scale of the
// query and the page. The sum of the weights uses unrounded weights.
#pragma once

#include <span>

#include "device/cpu/kernels/tile.h"
#include "device/cpu/kernels/tile_attention.h"
#include "format/page_view.h"

namespace kvant {

// The first limit holds for numbers of queries, keys and values, the second for numbers of weights.
inline constexpr float kByteNumberMax = 127, kByteWeightMax = 255;

// Rounds each of n rows of d values to whole numbers. scales[i] is the factor that turns the numbers of row i
// back into values, or 1 if all numbers are 0.
void round_rows_to_bytes(float* rows, int n, int d, float* scales);

// Adds `pages` to `partial` by F32 products of whole numbers, which are exact. All rules but `products` are
// obeyed. The softmax must be exact or sas.
void attend_in_bytes(const QueryTile& tile, std::span<const PageView> pages, const AttentionRules& rules,
                     TileScratch& scratch, PartialAttention& partial);

}  // namespace kvant
