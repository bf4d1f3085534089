// Lets the tokens of one prompt block attend to each other in low bits. The methods are VQuant's fused prompt
// kernel (VQuant section 5.2, Algorithm 1) and SageAttention (Zhang et al. 2025).
//
// Both methods are expressed in pages. Rounded pages replace the block's unsealed pages, and attention then
// runs over them as over any others, in one online softmax. A tile is 64 consecutive tokens.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include "cache/token_scores.h"
#include "device/cpu/kernels/tile_attention.h"
#include "recipe/recipe.h"

namespace kvant {

inline constexpr int kPromptTile = 64;  // Tokens that share a scale.

// Describes the part of a prompt block that is unsealed while one page of its queries attends.
struct PromptBlock {
  PromptAttention attention = PromptAttention::int8;
  int head_dim = 0;
  int first_token = 0, end_token = 0;  // first_token begins a page.
  int query_page = 0;                  // The first token of the page that holds the queries.
  // int8 and int4 leave three kinds of tokens unrounded. The window has the tokens from query_page - window
  // on, unless window is 0. The sink has the first `sink` tokens of the sequence. Vertical lines are the
  // share `protect` of all scored tokens that has drawn most attention.
  int window = 0;
  int sink = 0;
  double protect = 0;
  const TokenScores* scores = nullptr;  // Null if protect is 0.
};

// Holds the rounded pages of one head. The views that replace() writes point to these pages until the next
// call.
class RoundedPages {
 public:
  // Replaces views of the block's tokens that the queries can see. `pages` comes from list_pages and reaches
  // to the end of the block.
  void replace(const PromptBlock& block, std::vector<PageView>& pages);

 private:
  std::byte* new_bytes(std::size_t n);
  void round_low_bit(const PromptBlock& block, const PageView& page, float threshold,
                     std::vector<PageView>& out);
  void round_sage(const PromptBlock& block, const PageView& page, const std::vector<double>& mean,
                  std::vector<PageView>& out);

  std::deque<std::vector<std::byte>> bytes_;
  PageContext whole_page_;  // Serves all rounded pages.
};

// Rounds SageAttention's queries. Each tile of 64 queries of one head is rounded to whole multiples of its
// largest magnitude / 127.
void round_sage_queries(QueryTile& queries, int head_dim);

}  // namespace kvant
