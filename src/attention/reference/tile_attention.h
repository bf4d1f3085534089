// Attention of one tile of queries over a run of pages, by online softmax (Milakov and Gimelshein 2018; the
// form of FlashAttention, Dao et al. 2022).
#pragma once

#include <span>
#include <vector>

#include "base/geometry.h"
#include "cache/head_state.h"

namespace kvant {

// The queries of one tile for one KV head: row g * n_queries + i is query head g, token first_token + i.
struct QueryTile {
  int first_token = 0;
  int n_queries = 0;
  int group = 0;              // G
  std::vector<float> q;       // [group * n_queries, d]: transformed, times the score scale
  std::vector<float> offset;  // [group * n_queries]: added to every score; empty: none
  int rows() const { return group * n_queries; }
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

// Buffers of one thread, kept from call to call.
struct TileScratch {
  std::vector<float> page;    // [kPageTokens, d]: decoded K, then V
  std::vector<float> scores;  // [rows, kPageTokens]
};

// Adds `pages` to `partial`. A token is seen by a query at or after it, within `sliding_window` (0: any).
// The query's score scale is folded into tile.q; `softcap` > 0 caps scores smoothly (Gemma 2).
void attend_pages(const QueryTile& tile, std::span<const PageView> pages, int head_dim, int sliding_window,
                  float softcap, TileScratch& scratch, PartialAttention& partial);

}  // namespace kvant
