// Says which pages of a sequence are sealed, freed and due, and which tokens are in the tail. Unless a
// sequence was cut back, all numbers follow from its length and the layer's windows alone. So the result does
// not depend on how the tokens came. Host and device use these functions, and so does all code that
// predicts or tests a cache. The header needs nothing but the page size.
#pragma once

#include "base/page_size.h"

#ifdef __CUDACC__
#define KVANT_PAGE_COUNTS __host__ __device__ constexpr
#else
#define KVANT_PAGE_COUNTS constexpr
#endif

namespace kvant {

// The open page of a tail takes memory in steps of this many tokens.
inline constexpr int kTailStep = 16;
static_assert(kPageTokens % kTailStep == 0);

// Returns how many tokens the pages of a tail of n_tokens have room for.
KVANT_PAGE_COUNTS int tail_room(int n_tokens) {
  return (n_tokens + kTailStep - 1) / kTailStep * kTailStep;
}

// Returns the number of pages that hold n_tokens, including the open page.
KVANT_PAGE_COUNTS int pages_for(int n_tokens) {
  return (n_tokens + kPageTokens - 1) / kPageTokens;
}

// Returns how many leading pages are sealed once `seal_point` tokens have been passed. Page j is sealed if
// 128 (j + 1) + window <= seal_point. The seal point of a decoded token is its index. The seal points of a
// prompt are the ends of its blocks (schedule.h).
KVANT_PAGE_COUNTS int sealed_pages(int seal_point, int window) {
  return seal_point <= window ? 0 : (seal_point - window) / kPageTokens;
}

// Returns the oldest token that the query of token `query` sees. sliding_window is in tokens; 0 means that
// all tokens are seen.
KVANT_PAGE_COUNTS int first_visible_token(int query, int sliding_window) {
  return sliding_window == 0 || query < sliding_window ? 0 : query + 1 - sliding_window;
}

// Returns how many of the n_sealed leading pages are seen by no token from n_tokens on.
KVANT_PAGE_COUNTS int freed_pages(int n_tokens, int sliding_window, int n_sealed) {
  const int unseen = first_visible_token(n_tokens, sliding_window) / kPageTokens;
  return unseen < n_sealed ? unseen : n_sealed;
}

struct PageCounts {
  int sealed = 0;       // leading pages, including freed ones
  int freed = 0;        // The oldest of the sealed pages.
  int due = 0;          // The sealed pages that were not sealed before.
  int tail_tokens = 0;  // tokens after the sealed pages
};

// Counts the pages of a sequence of n_tokens, as the next decoded token finds them. n_sealed pages are sealed
// already. A sequence that has been cut back may have more sealed pages than the windows demand.
KVANT_PAGE_COUNTS PageCounts page_counts(int n_tokens, int window, int sliding_window = 0, int n_sealed = 0) {
  const int demanded = sealed_pages(n_tokens, window);
  PageCounts counts;
  counts.sealed = demanded > n_sealed ? demanded : n_sealed;
  counts.freed = freed_pages(n_tokens, sliding_window, counts.sealed);
  counts.due = counts.sealed - n_sealed;
  counts.tail_tokens = n_tokens - counts.sealed * kPageTokens;
  return counts;
}

// Describes what a token sees.
struct VisibleTokens {
  int sealed_pages = 0;
  int tail_tokens = 0;  // tokens after the sealed pages, including the token itself
};

// Returns what the token sees from `page` on.
KVANT_PAGE_COUNTS VisibleTokens from_page(const VisibleTokens& visible, int page) {
  const int left_out = page - visible.sealed_pages;  // pages of the tail that are left out
  return left_out > 0 ? VisibleTokens{0, visible.tail_tokens - left_out * kPageTokens}
                      : VisibleTokens{-left_out, visible.tail_tokens};
}

}  // namespace kvant

#undef KVANT_PAGE_COUNTS
