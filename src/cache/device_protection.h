// DeviceProtection holds what a sequence keeps on a device for tokens that scores protect: the rows of these
// tokens, and the queries that observe. ProtectedTokens has the tokens and their scores.
#pragma once

#include <vector>

#include "cache/entry_hold.h"
#include "cache/protected_tokens.h"
#include "recipe/plan.h"

namespace kvant {

// Returns how many entries the rows may take that are protected with n_sealed sealed pages.
int protected_pages(const Plan& plan, int n_sealed);

struct DeviceProtection {
  std::vector<EntryHold> pages;  // Entry i has each head's protected rows from 128 i on.
  // The open page's observers are the queries of tokens from first_observer on. -1 means no observers.
  EntryHold observers;
  int first_observer = -1;

  DeviceProtection share() const;
  // Keeps the first n_tokens tokens, which leave protected tokens `left`.
  void truncate(int n_tokens, const ProtectedTokens& left);
};

// Returns the first query that observes when the page that ends at page_end ends. The step appends tokens
// from `first` on, and the sequence had observers from first_observer on.
int first_observer_of(int page_end, int first, int first_observer);

}  // namespace kvant
