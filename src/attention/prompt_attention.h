// How the tokens of one prompt block attend to each other in low bits: VQuant's fused prompt kernel (VQuant
// section 5.2, Algorithm 1) and SageAttention (Zhang et al. 2025).
//
// Both are expressed in pages: the block's unsealed pages are replaced by rounded ones, over which attention
// then runs as over any others, in one online softmax. A tile is 64 consecutive tokens.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include "cache/token_scores.h"
#include "device/cpu/kernels/tile_attention.h"
#include "recipe/recipe.h"

namespace kvant {

inline constexpr int kPromptTile = 64;  // tokens that share a scale

// The part of a prompt block that is unsealed while one page of its queries attends.
struct PromptBlock {
  PromptAttention attention = PromptAttention::int8;
  int head_dim = 0;
  int first_token = 0, end_token = 0;  // it begins with a page
  int query_page = 0;                  // the first token of the page that the queries lie in
  // int8 and int4 leave these unrounded: the tokens from query_page - window on, unless window is 0; the
  // first `sink` of the sequence; and the share `protect` of all tokens with a score that have drawn most
  // attention.
  int window = 0;
  int sink = 0;
  double protect = 0;
  const TokenScores* scores = nullptr;  // null: protect is 0
};

// The rounded pages of one head: what the views in `pages` point at until the next call.
class RoundedPages {
 public:
  // Replaces views of the block's tokens that the queries can see. `pages`: of list_pages, to the end of the
  // block.
  void replace(const PromptBlock& block, std::vector<PageView>& pages);

 private:
  std::byte* new_bytes(std::size_t n);
  void round_low_bit(const PromptBlock& block, const PageView& page, float threshold,
                     std::vector<PageView>& out);
  void round_sage(const PromptBlock& block, const PageView& page, const std::vector<double>& mean,
                  std::vector<PageView>& out);

  std::deque<std::vector<std::byte>> bytes_;
  PageContext whole_page_;  // of the rounded pages
};

// SageAttention's queries: rounds each tile of 64 queries of one head to whole multiples of its largest
// magnitude / 127.
void round_sage_queries(QueryTile& queries, int head_dim);

}  // namespace kvant
