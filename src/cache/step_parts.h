// What a step does to a sequence, from its length and its number of new tokens alone: which of these attend
// together, what they see sealed and in the tail, and which pages become due. Host and device, as
// page_counts.h: steps of which only a device knows the lengths (kvant_plan_step) take it from here.
//
// New tokens are decoded ones: each sees what its index demands (page_counts.h).
#pragma once

#include "cache/page_counts.h"

#ifdef __CUDACC__
#define KVANT_STEP_PARTS __host__ __device__ constexpr
#else
#define KVANT_STEP_PARTS constexpr
#endif

namespace kvant {

// What all sequences of a step have in common.
struct StepRules {
  int window = 0;          // tokens
  int sliding_window = 0;  // tokens; 0: full attention
  int max_queries = 1;     // of a part
};

// A sequence of n_tokens, the last n_new of which are the step's. It may have fewer than these: the first
// ones then are none. n_sealed: pages that are sealed before the step, of which there may be more than the
// window demands where a sequence has been cut back.
struct StepTokens {
  int n_tokens = 0;
  int n_new = 0;
  int n_sealed = 0;
  KVANT_STEP_PARTS int first_new() const { return n_tokens - n_new; }
};

// New tokens of a sequence one after another that see the same pages sealed: up to max_queries queries.
struct StepPart {
  int first = 0, n = 0;                   // of the new tokens
  int first_page = 0;                     // of the sequence, that the first of them sees
  int sealed_pages = 0, tail_tokens = 0;  // that the last one sees, from that page on
  int hidden_tokens = 0;                  // of that page, before the last one's window
  KVANT_STEP_PARTS int first_tail_page() const { return first_page + sealed_pages; }
};

// New tokens of a sequence, at most: then one page's end at most divides what they see.
inline constexpr int kMaxNewTokens = kPageTokens;

// Parts of a sequence with up to max_new tokens, at most.
KVANT_STEP_PARTS int parts_of(int max_new, int max_queries) {
  return max_new == 1 ? 1 : (max_new + max_queries - 1) / max_queries + 1;
}

// Pages that a tail has at most while up to max_new tokens are appended.
KVANT_STEP_PARTS int tail_pages_of(int max_new, int window) {
  return pages_for(window + kPageTokens - 1 + max_new);
}

// Part `nth` of a sequence; the parts behind the last one are empty.
KVANT_STEP_PARTS StepPart step_part(const StepRules& rules, const StepTokens& tokens, int nth) {
  StepPart part;
  int sealed = 0;
  for (int i = 0; i <= nth; ++i) {
    part.first += part.n;
    if (part.first == tokens.n_new) return {.first = tokens.n_new};
    const int token = tokens.first_new() + part.first;
    const int demanded = sealed_pages(token, rules.window);
    sealed = demanded > tokens.n_sealed ? demanded : tokens.n_sealed;
    const int alike =
        kPageTokens * (sealed + 1) + rules.window - token;  // tokens that see as many pages sealed
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

// Pages that are to be sealed before a token behind the step's sees them, and before any of the step's does
// that lies behind their end.
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
