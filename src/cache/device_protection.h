// DeviceProtection holds the protected tokens of a sequence whose pages lie on a device. Recipes with such
// tokens protect by the attention that tokens draw (VQuant section 5; token_scores.h). The host keeps the
// scores and the choice of tokens, because both change only at page ends. The rows of protected tokens and
// the observing queries lie on the device.
#pragma once

#include <memory>
#include <vector>

#include "cache/entry_hold.h"
#include "cache/token_scores.h"
#include "recipe/plan.h"

namespace kvant {

// Return whether scores choose tokens that sealed pages leave out, in any layer or in one layer.
bool protects_by_score(const Plan& plan);
bool protects_by_score(const Plan& plan, int layer);

// Holds the protected tokens of a sequence. Forks share the object, so the object of a committed sequence
// never changes.
struct ProtectedTokens {
  struct Head {
    TokenScores scores;  // without observers
    // Protected tokens including the sink, in ascending order. Token i has protected row i.
    std::vector<int> tokens;
  };
  std::vector<Head> heads;  // by Geometry::head_index

  // Returns the object of an empty sequence.
  static std::shared_ptr<ProtectedTokens> none(const Geometry& geometry);
  // Returns the protected tokens of a page.
  static TokenMask mask(const Head& head, int page);
  // Chooses the tokens to protect of pages [first, end), whose scores are known, and adds them.
  static void seal(Head& head, const LayerPlan& layer, int first, int end);
  // Keeps the first n_tokens tokens, with n_sealed sealed pages.
  void truncate(int n_tokens, int n_sealed);
  // Return the rows of the heads with the most and the fewest rows, in layers that protect by score.
  int most_rows() const;
  int fewest_rows(const Plan& plan) const;
};

// Returns how many entries the rows may take that are protected with n_sealed sealed pages.
int protected_pages(const Plan& plan, int n_sealed);

struct DeviceProtection {
  // Null if the plan protects nothing by score, or if the sequence is empty.
  std::shared_ptr<ProtectedTokens> tokens;
  std::vector<EntryHold> pages;  // Entry i has each head's protected rows from 128 i on.
  // The open page's observers are the queries of tokens from first_observer on. -1 means no observers.
  EntryHold observers;
  int first_observer = -1;

  DeviceProtection share() const;
  // Keeps the first n_tokens tokens, with n_sealed sealed pages. May throw std::bad_alloc.
  void truncate(int n_tokens, int n_sealed);
};

// Returns the first query that observes when the page that ends at page_end ends. The step appends tokens
// from `first` on, and the sequence had observers from first_observer on.
int first_observer_of(int page_end, int first, int first_observer);

// Returns how many observers the next step may find in a sequence of n_tokens. Observers are tokens of the
// second half of the open page.
inline int open_observers(int n_tokens) {
  const int n = n_tokens % kPageTokens - (kPageTokens - kObservers);
  return n > 0 ? n : 0;
}

}  // namespace kvant
