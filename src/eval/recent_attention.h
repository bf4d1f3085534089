// Attention to a few tokens of one KV head in plain F32, with the original K and V and with those that a
// cache returns.
#pragma once

#include <vector>

#include "attention/output_error.h"
#include "cache/page_store.h"
#include "eval/recent_rows.h"
#include "recipe/plan.h"

namespace kvant {

// Holds tokens of one head, [n, d] per side.
struct TokenRows {
  std::vector<int> tokens;  // absolute index of each
  std::vector<char> seen;   // 0: the cache has dropped the token (eviction)
  std::vector<float> k, v;
};

// Holds the compared tokens: protected tokens before `first`, and all tokens from `first` on.
struct RecentTokens {
  TokenRows exact;    // from `recent`; older tokens come from the cache, which has them unquantized
  TokenRows cached;   // the same tokens as the cache returns them
  int quantized = 0;  // tokens that the cache holds in their final format
};

// pages: all pages that are visible from `first` on, as HeadState::list_pages() returns them; n_sealed of the
// head's pages are sealed. first: the first token of a page, not before recent.first(). The head's last token
// is recent.end() - 1.
RecentTokens recent_tokens(const Plan& plan, int layer, int kv_head, const std::vector<PageView>& pages,
                           int n_sealed, const RecentRows& recent, int first);

// Returns one side of a page in the model's space: decoded and with the transform undone. [n_tokens, d].
std::vector<float> decoded_rows(const PageSide& side, const Transform& transform, int n_tokens);

// Holds the errors that the cache causes in the outputs of one query token's group.
struct RecentError {
  OutputError all;   // with K and V as the cache returns them
  OutputError keys;  // only K
};
// q: [n_heads * d], one token, unscaled.
RecentError recent_error(const Plan& plan, int layer, int kv_head, const float* q,
                         const RecentTokens& tokens);

}  // namespace kvant
