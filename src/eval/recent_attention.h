// Attends to a few tokens of one KV head in plain F32. The attention is computed twice: with the original K
// and V, and with K and V as the cache returns them. QualityGuard compares the two outputs.
#pragma once

#include <vector>

#include "attention/output_error.h"
#include "cache/page_store.h"
#include "eval/recent_rows.h"
#include "recipe/plan.h"

namespace kvant {

// Holds tokens of one head. `k` and `v` are [n, d].
struct TokenRows {
  // Holds the absolute indices of the tokens.
  std::vector<int> tokens;
  // The value is 0 if eviction has dropped the token from the cache.
  std::vector<char> seen;
  std::vector<float> k, v;
};

// Holds the compared tokens, which are the protected tokens before `first` and all tokens from `first` on.
struct RecentTokens {
  // `exact` comes from RecentRows. Protected tokens come from the cache, which holds them unquantized.
  TokenRows exact;
  // Holds the values that the cache returns for the tokens of `exact`.
  TokenRows cached;
  // Counts the tokens that the cache holds in their final format.
  int quantized = 0;
};

// Returns the tokens of a head that a check compares. `pages` lists all pages that are visible from `first`
// on, in the form of HeadState::list_pages(). n_sealed of the head's pages are sealed. `first` must be the
// first token of a page and at least recent.first(). The head's last token is recent.end() - 1.
RecentTokens recent_tokens(const Plan& plan, int layer, int kv_head, const std::vector<PageView>& pages,
                           int n_sealed, const RecentRows& recent, int first);

// Returns one side of a page, [n_tokens, d], decoded and with the transform undone. Without quantization, the
// result would be the model's values.
std::vector<float> decoded_rows(const PageSide& side, const Transform& transform, int n_tokens);

// Holds the errors that the cache causes in the outputs of one query token's group of heads.
struct RecentError {
  // `all` is the error if both K and V come from the cache.
  OutputError all;
  // `keys` is the error if only K comes from the cache.
  OutputError keys;
};
// Returns the errors for one token. `q` is the token's unscaled query, [n_heads * d].
RecentError recent_error(const Plan& plan, int layer, int kv_head, const float* q,
                         const RecentTokens& tokens);

}  // namespace kvant
