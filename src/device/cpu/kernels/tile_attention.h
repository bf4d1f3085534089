// Attends with one tile of queries to a run of pages, by online softmax (Milakov and Gimelshein 2018; the
// form of FlashAttention, Dao et al. 2022). Pages are decoded, and products are F32. The reference backend
// uses these functions for all formats.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "device/cpu/kernels/skip_count.h"
#include "device/cpu/kernels/tile.h"
#include "format/page_view.h"

namespace kvant {

// Holds buffers of one thread, which stay from call to call.
struct TileScratch {
  std::vector<float> page;      // [kPageTokens, d]: decoded K, later decoded V
  std::vector<float> scores;    // [rows, kPageTokens]
  std::vector<float> products;  // [rows, d]: integer products before scaling
  std::array<float, kPageTokens / kIntegerBlock> block_scales{};
};

// Computes the scores of one page into scratch.scores [rows, n_tokens], with a row stride of kPageTokens. A
// token that a query does not see gets -inf.
void score_page(const QueryTile& tile, const PageView& page, const AttentionRules& rules,
                TileScratch& scratch);

// Turns a row of scores into weights relative to the row's running maximum, and rescales earlier results.
void weigh_row(int r, int n_tokens, const AttentionRules& rules, float* scores, PartialAttention& partial);

// Adds `pages` to `partial` and returns what was skipped. With a skip rule, partial.max must be the maximum
// over all pages.
SkipCount attend_pages(const QueryTile& tile, std::span<const PageView> pages, const AttentionRules& rules,
                       const SkipRule* skip, TileScratch& scratch, PartialAttention& partial);

// Adds only the maxima and sums of `pages`, in the first of two passes. V is not read.
void weigh_pages(const QueryTile& tile, std::span<const PageView> pages, const AttentionRules& rules,
                 TileScratch& scratch, PartialAttention& partial);

}  // namespace kvant
