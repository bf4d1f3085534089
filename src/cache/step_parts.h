// Says what a step does to a sequence: which new tokens attend together, what they see, and which pages
// become due. All follows from the sequence's length, its number of new tokens and its sealed pages. Host and
// device use these functions, as with page_counts.h. kvant_plan_step needs them for steps whose lengths only
// the device knows.
//
// New tokens are decoded tokens, so each sees what its index demands (page_counts.h).
#pragma once

#include "cache/page_counts.h"

#ifdef __CUDACC__
#define KVANT_STEP_PARTS __host__ __device__ constexpr
#else
#define KVANT_STEP_PARTS constexpr
#endif

namespace kvant {

// Holds the rules that all sequences of a step share.
struct StepRules {
  int window = 0;          // tokens
  int sliding_window = 0;  // tokens; 0 for full attention
  int max_queries = 1;     // queries of a part
};

// Describes a sequence of n_tokens tokens. The last n_new tokens belong to the step. If n_tokens is smaller
// than n_new, the first new tokens do not exist. n_sealed pages are sealed before the step. A sequence that
// has been cut back may have more sealed pages than the window demands.
struct StepTokens {
  int n_tokens = 0;
  int n_new = 0;
  int n_sealed = 0;
  KVANT_STEP_PARTS int first_new() const { return n_tokens - n_new; }
};

// Describes up to max_queries consecutive new tokens of a sequence that see equal pages sealed.
struct StepPart {
  int first = 0, n = 0;                   // index among the new tokens, and number of tokens
  int first_page = 0;                     // The first page of the sequence that the part's first token sees.
  int sealed_pages = 0, tail_tokens = 0;  // What the part's last token sees, from first_page on.
  int hidden_tokens = 0;                  // Tokens of first_page that lie before the last token's window.
  KVANT_STEP_PARTS int first_tail_page() const { return first_page + sealed_pages; }
};

// A sequence has at most this many new tokens in a step. At most one page end then divides what they see.
inline constexpr int kMaxNewTokens = kPageTokens;

// Returns the maximum number of parts of a sequence with up to max_new new tokens.
KVANT_STEP_PARTS int parts_of(int max_new, int max_queries) {
  return max_new == 1 ? 1 : (max_new + max_queries - 1) / max_queries + 1;
}

// Returns the maximum number of pages of a tail while up to max_new tokens are appended.
KVANT_STEP_PARTS int tail_pages_of(int max_new, int window) {
  return pages_for(window + kPageTokens - 1 + max_new);
}

// Returns part `nth` of a sequence. Parts after the last one are empty.
KVANT_STEP_PARTS StepPart step_part(const StepRules& rules, const StepTokens& tokens, int nth) {
  StepPart part;
  int sealed = 0;
  for (int i = 0; i <= nth; ++i) {
    part.first += part.n;
    if (part.first == tokens.n_new) return {.first = tokens.n_new};
    const int token = tokens.first_new() + part.first;
    const int demanded = sealed_pages(token, rules.window);
    sealed = demanded > tokens.n_sealed ? demanded : tokens.n_sealed;
    // This many tokens from `token` on see as many pages sealed as `token` does.
    const int alike = kPageTokens * (sealed + 1) + rules.window - token;
    const int left = tokens.n_new - part.first;
    const int most = left < rules.max_queries ? left : rules.max_queries;
    part.n = alike < most ? alike : most;
  }
  const int first = tokens.first_new() + part.first, last = first + part.n - 1;
  if (last < 0) return part;
  part.first_page = first_visible_token(first > 0 ? first : 0, rules.sliding_window) / kPageTokens;
  part.hidden_tokens = first_visible_token(last, rules.sliding_window) - part.first_page * kPageTokens;
  const VisibleTokens seen = from_page({sealed, last + 1 - sealed * kPageTokens}, part.first_page);
  part.sealed_pages = seen.sealed_pages;
  part.tail_tokens = seen.tail_tokens;
  return part;
}

// Describes the pages that must be sealed before a token sees them sealed. The token is the next token after
// the step, or a token of the step that lies after the page's end.
struct DuePages {
  int first = 0, n = 0;
  int sealed_after = 0;  // leading pages
};
KVANT_STEP_PARTS DuePages due_pages(const StepRules& rules, const StepTokens& tokens) {
  const PageCounts counts = page_counts(tokens.n_tokens, rules.window, rules.sliding_window, tokens.n_sealed);
  const int first_new = tokens.first_new() > 0 ? tokens.first_new() : 0;
  const int unseen = freed_pages(first_new, rules.sliding_window, counts.sealed);
  DuePages due;
  due.first = unseen > tokens.n_sealed ? unseen : tokens.n_sealed;
  due.n = counts.sealed - due.first;
  due.sealed_after = counts.sealed;
  return due;
}

}  // namespace kvant

#undef KVANT_STEP_PARTS
