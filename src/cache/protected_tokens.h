// ProtectedTokens says which tokens of a sequence stay unquantized or are dropped when their pages are
// sealed. The class also holds the scores that decide (VQuant section 5; token_scores.h). ProtectedTokens
// lies in host memory, also if the pages lie on a device, because the choice changes only at page ends.
// Entries hold the rows of protected tokens (sequence_pages.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/token_mask.h"
#include "cache/page_ledger.h"
#include "cache/token_scores.h"
#include "format/page_view.h"
#include "recipe/plan.h"

namespace kvant {

// Names the tokens that are left out of a sealed page.
struct PageMask {
  int page = 0;
  TokenMask mask;
  bool operator==(const PageMask&) const = default;
};

// Returns the masks of pages that hold some of `tokens`, which ascend.
std::vector<PageMask> masks_of(const std::vector<int>& tokens);

// Return whether scores choose tokens that sealed pages leave out, in any layer or in one layer.
bool protects_by_score(const Plan& plan);
bool protects_by_score(const Plan& plan, int layer);

// Returns the maximum number of protected tokens of the layer with n_sealed sealed pages, including the sink.
int max_protected_tokens(const LayerPlan& layer, int n_sealed);
// Returns the maximum number of protected tokens without the sink (VQuant section 5).
int protection_cap(const LayerPlan& layer, int n_sealed);

// Returns how many protected rows of each head a page in host memory has, and images have. The number is the
// sink's tokens if only the sink is protected, and 0 if nothing is.
int protected_page_rows(const Plan& plan, int layer);
// Returns how many entries the protected rows of n_sealed sealed pages may take, if an entry has
// rows_of_layer[layer] rows of each head.
int most_protected_entries(const Plan& plan, const std::vector<int>& rows_of_layer, int n_sealed);

// Forks share the object, so the object of a committed sequence never changes. A step that ends or seals
// pages changes a copy.
struct ProtectedTokens {
  struct Head {
    TokenScores scores;
    std::vector<int> tokens;      // Protected tokens, ascending. Token i has protected row i.
    std::vector<PageMask> masks;  // by page, ascending; with eviction, of every sealed page

    // Returns the tokens that are left out of a sealed page.
    TokenMask mask(int page) const;
    // Returns how many protected tokens lie before `token`.
    int n_before(int token) const;
    // Returns the tokens to protect when page `page` is sealed: the sink, and the tokens that scores choose.
    TokenMask to_protect(const LayerPlan& layer, int page) const;
    // Takes the memory that seal() and end_page() need in the step that `ledger` has reserved.
    void reserve(const LayerPlan& layer, const PageLedger& ledger);
    // Adds the tokens of a page that is sealed after all earlier pages, and evicts tokens. Returns the page's
    // protected tokens.
    TokenMask seal(const LayerPlan& layer, int page);
    // Keeps the first n_tokens tokens, with n_sealed sealed pages.
    void truncate(int n_tokens, int n_sealed);
    std::int64_t bytes() const { return list_bytes(tokens.size(), masks.size()) + scores.bytes(); }

   private:
    void evict(const LayerPlan& layer);
  };
  std::vector<Head> heads;  // by Geometry::head_index

  // Returns the object of an empty sequence.
  static std::shared_ptr<const ProtectedTokens> none(const Geometry& geometry);
  // Returns the bytes of the lists of protected tokens and of masked pages.
  static std::int64_t list_bytes(std::size_t n_protected, std::size_t n_masked_pages) {
    return static_cast<std::int64_t>(n_protected * sizeof(int) + n_masked_pages * sizeof(PageMask));
  }
};

}  // namespace kvant
