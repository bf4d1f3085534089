// DeviceProtection: what a sequence whose pages lie on a device has beside them where the recipe protects
// tokens by the attention that they draw (VQuant section 5; token_scores.h). Which tokens are protected, and
// the scores that choose them, are the host's, who is asked at the ends of pages alone; their rows and the
// queries that observe lie on the device.
#pragma once

#include <memory>
#include <vector>

#include "cache/entry_hold.h"
#include "cache/token_scores.h"
#include "recipe/plan.h"

namespace kvant {

// Whether sealed pages have tokens left out that scores chose, in any layer or in one.
bool protects_by_score(const Plan& plan);
bool protects_by_score(const Plan& plan, int layer);

// Which tokens are protected. What a committed sequence holds never changes: forks hold the same.
struct ProtectedTokens {
  struct Head {
    TokenScores scores;       // without observers
    std::vector<int> tokens;  // protected ones, the sink's too, ascending: token i has protected row i
  };
  std::vector<Head> heads;  // by Geometry::head_index

  // Those of an empty sequence.
  static std::shared_ptr<ProtectedTokens> none(const Geometry& geometry);
  // The protected tokens of a page.
  static TokenMask mask(const Head& head, int page);
  // Chooses the tokens to protect of pages [first, end), whose scores are known, and adds them.
  static void seal(Head& head, const LayerPlan& layer, int first, int end);
  // Keeps the first n_tokens, of which n_sealed pages are sealed.
  void truncate(int n_tokens, int n_sealed);
  // Rows of the heads that have the most and the fewest in layers that protect by score.
  int most_rows() const;
  int fewest_rows(const Plan& plan) const;
};

// Entries of the rows that may be protected with n_sealed pages sealed.
int protected_pages(const Plan& plan, int n_sealed);

struct DeviceProtection {
  std::shared_ptr<ProtectedTokens> tokens;  // null: the plan protects nothing by score, or no token is there
  std::vector<EntryHold> pages;             // page i: protected rows from 128 i on, of each head its own
  // The open page's observers: queries of tokens from first_observer on (-1: there are none).
  EntryHold observers;
  int first_observer = -1;

  DeviceProtection share() const;
  // Keeps the first n_tokens, of which n_sealed pages are sealed. May throw std::bad_alloc.
  void truncate(int n_tokens, int n_sealed);
};

// Of a step that appends tokens [first, end): the first of the queries that observe when the page that ends
// at page_end does, if the sequence had observers from first_observer on.
int first_observer_of(int page_end, int first, int first_observer);

// The observers of a sequence of n_tokens that the next step may find: tokens of the second half of its open
// page. 0: none.
inline int open_observers(int n_tokens) {
  const int n = n_tokens % kPageTokens - (kPageTokens - kObservers);
  return n > 0 ? n : 0;
}

}  // namespace kvant
