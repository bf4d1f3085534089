// Attention to a few tokens of one KV head in plain F32, with K and V as they were and as a cache gives them
// back.
#pragma once

#include <vector>

#include "attention/output_error.h"
#include "cache/page_store.h"
#include "eval/recent_rows.h"
#include "recipe/plan.h"

namespace kvant {

// Tokens of one head, [n, d] a side.
struct TokenRows {
  std::vector<int> tokens;  // absolute index of each
  std::vector<char> seen;   // 0: the cache has dropped the token (eviction)
  std::vector<float> k, v;
};

// What is compared: protected tokens before `first`, and all from `first` to the end.
struct RecentTokens {
  TokenRows exact;    // from `recent`; what lies before it, as the cache keeps it unquantized
  TokenRows cached;   // the same tokens as the cache gives them back
  int quantized = 0;  // tokens that the cache holds in their final format
};

// pages: with all tokens that are visible from `first` on, as HeadState::list_pages() has them; of all pages
// of the head, n_sealed are sealed. first: the first token of a page, not before recent.first(). The head's
// last token is recent.end() - 1.
RecentTokens recent_tokens(const Plan& plan, int layer, int kv_head, const std::vector<PageView>& pages,
                           int n_sealed, const RecentRows& recent, int first);

// One side of a page as the model made it: decoded, out of the cache's space. [n_tokens, d].
std::vector<float> decoded_rows(const PageSide& side, const Transform& transform, int n_tokens);

// What the cache does to the outputs of one query token's group.
struct RecentError {
  OutputError all;   // K and V as the cache gives them back
  OutputError keys;  // only K
};
// q: [n_heads * d], of one token, unscaled.
RecentError recent_error(const Plan& plan, int layer, int kv_head, const float* q,
                         const RecentTokens& tokens);

}  // namespace kvant
