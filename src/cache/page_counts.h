// Which pages of a sequence are sealed, freed and due, and which tokens are in the tail: from its length and
// the layer's windows alone (design section 2). Host and device, and everybody who predicts or tests a cache,
// take these numbers from here; the header needs nothing but the page size.
#pragma once

#include "base/page_size.h"

#ifdef __CUDACC__
#define KVANT_PAGE_COUNTS __host__ __device__ constexpr
#else
#define KVANT_PAGE_COUNTS constexpr
#endif

namespace kvant {

// A tail's open page takes memory for the tokens that it holds, in steps of so many.
inline constexpr int kTailStep = 16;
static_assert(kPageTokens % kTailStep == 0);

// Tokens that the pages of a tail of n_tokens have room for.
KVANT_PAGE_COUNTS int tail_room(int n_tokens) {
  return (n_tokens + kTailStep - 1) / kTailStep * kTailStep;
}

// Pages that n_tokens lie in, the open one included.
KVANT_PAGE_COUNTS int pages_for(int n_tokens) {
  return (n_tokens + kPageTokens - 1) / kPageTokens;
}

// Leading pages that are sealed once `seal_point` tokens have been passed: page j if 128 (j + 1) + window <=
// seal_point. A decoded token's seal point is its index; a prompt's are the ends of its blocks (schedule.h).
KVANT_PAGE_COUNTS int sealed_pages(int seal_point, int window) {
  return seal_point <= window ? 0 : (seal_point - window) / kPageTokens;
}

// The oldest token that the query of token `query` sees. sliding_window in tokens; 0: all are seen.
KVANT_PAGE_COUNTS int first_visible_token(int query, int sliding_window) {
  return sliding_window == 0 || query < sliding_window ? 0 : query + 1 - sliding_window;
}

// Of n_sealed leading pages, those that no token from n_tokens on sees.
KVANT_PAGE_COUNTS int freed_pages(int n_tokens, int sliding_window, int n_sealed) {
  const int unseen = first_visible_token(n_tokens, sliding_window) / kPageTokens;
  return unseen < n_sealed ? unseen : n_sealed;
}

struct PageCounts {
  int sealed = 0;       // leading pages, freed ones included
  int freed = 0;        // the oldest of these
  int due = 0;          // of the sealed ones, those that were not sealed before
  int tail_tokens = 0;  // behind the sealed pages
};

// A sequence of n_tokens, as a token that is decoded next finds it. n_sealed: pages that are sealed already,
// which is more than the windows demand where a sequence has been cut back.
KVANT_PAGE_COUNTS PageCounts page_counts(int n_tokens, int window, int sliding_window = 0, int n_sealed = 0) {
  const int demanded = sealed_pages(n_tokens, window);
  PageCounts counts;
  counts.sealed = demanded > n_sealed ? demanded : n_sealed;
  counts.freed = freed_pages(n_tokens, sliding_window, counts.sealed);
  counts.due = counts.sealed - n_sealed;
  counts.tail_tokens = n_tokens - counts.sealed * kPageTokens;
  return counts;
}

// What a token sees.
struct VisibleTokens {
  int sealed_pages = 0;
  int tail_tokens = 0;  // behind these pages, its own included
};

// What it sees from a page on.
KVANT_PAGE_COUNTS VisibleTokens from_page(const VisibleTokens& visible, int page) {
  const int left_out = page - visible.sealed_pages;  // pages of the tail
  return left_out > 0 ? VisibleTokens{0, visible.tail_tokens - left_out * kPageTokens}
                      : VisibleTokens{-left_out, visible.tail_tokens};
}

}  // namespace kvant

#undef KVANT_PAGE_COUNTS
