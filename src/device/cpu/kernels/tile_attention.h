// Attention of one tile of queries over a run of pages, by online softmax (Milakov and Gimelshein 2018; the
// form of FlashAttention, Dao et al. 2022): decoded pages and F32 products.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "device/cpu/kernels/skip_count.h"
#include "device/cpu/kernels/tile.h"
#include "format/page_view.h"

namespace kvant {

// Buffers of one thread, kept from call to call.
struct TileScratch {
  std::vector<float> page;      // [kPageTokens, d]: decoded K, then V
  std::vector<float> scores;    // [rows, kPageTokens]
  std::vector<float> products;  // [rows, d]: integer products before scaling
  std::array<float, kPageTokens / kIntegerBlock> block_scales{};
};

// Scores of one page: scratch.scores [rows, n_tokens], row stride kPageTokens; -inf where a query does not
// see a token.
void score_page(const QueryTile& tile, const PageView& page, const AttentionRules& rules,
                TileScratch& scratch);

// Turns a row of scores into weights relative to the row's running maximum, and rescales what came before.
void weigh_row(int r, int n_tokens, const AttentionRules& rules, float* scores, PartialAttention& partial);

// Adds `pages` to `partial`. With a skip rule, partial.max must be its total's max; returns what was skipped.
SkipCount attend_pages(const QueryTile& tile, std::span<const PageView> pages, const AttentionRules& rules,
                       const SkipRule* skip, TileScratch& scratch, PartialAttention& partial);

// Adds only the maxima and sums of `pages`: the first of two passes. V is not read.
void weigh_pages(const QueryTile& tile, std::span<const PageView> pages, const AttentionRules& rules,
                 TileScratch& scratch, PartialAttention& partial);

}  // namespace kvant
