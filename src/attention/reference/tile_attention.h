// Attention of one tile of queries over a run of pages, by online softmax (Milakov and Gimelshein 2018; the
// form of FlashAttention, Dao et al. 2022).
#pragma once

#include <array>
#include <span>
#include <vector>

#include "attention/skip_count.h"
#include "base/geometry.h"
#include "cache/head_state.h"

namespace kvant {

// The queries of one tile for one KV head: row g * n_queries + i is query head g, token first_token + i.
struct QueryTile {
  int first_token = 0;
  int n_queries = 0;
  int group = 0;               // G
  std::vector<float> q;        // [group * n_queries, d]: transformed, times the score scale
  std::vector<float> q_scale;  // [group * n_queries]: with integer products, q holds integers times this
  std::vector<float> offset;   // [group * n_queries]: added to every score; empty: none
  int rows() const { return group * n_queries; }
  int token(int row) const { return first_token + row % n_queries; }
};

// Unnormalized outputs of some pages: output row r is accumulator / sum, and the weights are exp(s - max).
struct PartialAttention {
  std::vector<float> max;          // [rows]; -inf: nothing seen
  std::vector<float> sum;          // [rows]
  std::vector<float> accumulator;  // [rows, d]

  void reset(int rows, int d);
  // Adds the pages that `other` saw. Same rows and d.
  void merge(const PartialAttention& other, int d);
};

// What a layer's scores and weights obey.
struct AttentionRules {
  int head_dim = 0;
  int sliding_window = 0;  // a token is seen by a query at or after it, within this many tokens; 0: any
  float softcap = 0;       // > 0: scores become softcap * tanh(score / softcap) (Gemma 2)
  Softmax softmax = Softmax::exact;
  Products products = Products::real;
};

// The final statistics of a tile's rows, and what is skipped in their light: V of a token where the weight
// exp(s - max) / sum is below tau for every head of the group.
struct SkipRule {
  double tau = 0;
  const PartialAttention* total = nullptr;
};

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

// Adds `pages` to `partial`. With a skip rule, partial.max must be its total's max; returns what was skipped.
SkipCount attend_pages(const QueryTile& tile, std::span<const PageView> pages, const AttentionRules& rules,
                       const SkipRule* skip, TileScratch& scratch, PartialAttention& partial);

// Adds only the maxima and sums of `pages`: the first of two passes. V is not read.
void weigh_pages(const QueryTile& tile, std::span<const PageView> pages, const AttentionRules& rules,
                 TileScratch& scratch, PartialAttention& partial);

}  // namespace kvant
