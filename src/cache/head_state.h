// HeadState holds what one (sequence, layer, KV head) has besides its group's page entries, and moves the
// head through a step.
//
// The ledger says which entries hold the head's pages, and the store has their bytes. When a page is sealed,
// its protected tokens are copied to the sequence's protected rows and masked out of the page.
// Evicted tokens are masked out and kept nowhere (ProtectedTokens). A page is freed when all its tokens are
// gone. During a step, each head advances at its own pace. Everything after the committed marks is
// provisional, and committed data are not overwritten before commit().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/matrix_view.h"
#include "cache/head_image.h"
#include "cache/page_store.h"
#include "cache/sequence_pages.h"
#include "recipe/plan.h"

namespace kvant {

// Says where the pages of one head are.
struct HeadPages {
  HostPageStore* store = nullptr;      // The store of the layer group.
  SequencePages* sequence = nullptr;   // The sequence with the head's tokens.
  const PageLedger* ledger = nullptr;  // The ledger of the sequence and group.
  HostPageStore* row_store = nullptr;  // The store of protected rows.
};

// Returns after how many tokens of the open page, 2 to 127, a head encodes a page ahead
// (HeadState::seal_ahead). 0 means never. The result is 0 for a head with scores or evictions, which learns
// only when a page is due which tokens the page leaves out. Without a window the result is 0 too, because no
// full page waits until it is due.
int seal_ahead_turn(const Plan& plan, int layer, int kv_head);

// Holds a correction's sums in host memory. Threads may change different heads at the same time.
struct HostSums final : SequenceNumbers {
  // Holds the sums of each head by Geometry::head_index (linear_correction.h). The list of a head is empty
  // before the head has summed up a page.
  std::vector<std::vector<float>> heads;
};

// Holds the observers of an open page in host memory. Threads may change different heads at the same time.
struct HostObservers final : SequenceNumbers {
  std::vector<ObserverRows> heads;  // by Geometry::head_index; empty rows in layers that need no scores
};

class HeadState {
 public:
  // All references outlive the state.
  HeadState(const Plan& plan, int layer, int kv_head, const HeadPages& pages);
  HeadState(HeadState&&) noexcept = default;

  int layer() const { return head_.k.context.constants.layer; }
  int length() const { return length_; }                          // tokens, including provisional ones
  int n_sealed() const { return n_sealed_; }                      // pages, including provisional ones
  int first_page() const { return pages_.ledger->first_page(); }  // A sliding window has freed older pages.

  // --- a step: reserve, any number of append / seal, then commit or abort ---
  // Returns whether this head seals ahead in the step that the ledger has reserved. If so, the ledger must
  // hold an entry ahead.
  bool seals_ahead() const;
  // Takes memory for what the ledger has reserved. Returns false or throws std::bad_alloc if memory is
  // exhausted. The caller must then call abort().
  bool reserve();
  // Writes n new tokens at the end. k and v are [n, d], transformed and finite.
  void append(MatrixView<const float> k, MatrixView<const float> v);
  // Seals the oldest unsealed pages until n_pages are sealed. The call resizes `scratch` as needed.
  void seal_until(int n_pages, std::vector<float>& scratch);
  // Encodes the next page before it is due, while the window still holds the page. The pages of all layers
  // and heads are due at one token. So each layer and head encodes at a different decoded token, and no token
  // takes much longer than the rest. The call comes after append() and does not change what queries see.
  void seal_ahead(std::vector<float>& scratch);
  void commit();  // The ledger commits first.
  void abort();   // The ledger aborts afterwards.

  // Returns which tokens of sealed pages are protected or evicted, and the scores that choose them.
  const ProtectedTokens::Head& chosen() const;
  // Returns the scores, or null if the layer needs none.
  const TokenScores* scores() const { return layer_.needs_scores() ? &chosen().scores : nullptr; }
  // Return the observers of the open page when the step began, and as the step leaves them. Null means none.
  // The backend writes the rows of next_observers(), and ends pages before it seals.
  const ObserverRows* observers() const { return rows_of(pages_.sequence->observers()); }
  ObserverRows* next_observers() { return rows_of(pages_.sequence->next_observers()); }
  // Ends the page that ends at `end`. Takes the arguments of TokenScores::end_page().
  void end_page(int end, int first_observer, std::span<const double> weights);
  // Returns the sums of the sealed pages' correction, or null if the head has none.
  const float* correction() const;

  // Appends the pages that hold tokens >= first_visible, oldest first. Protected rows come before the tail.
  void list_pages(int first_visible, std::vector<PageView>& pages) const {
    list_pages(first_visible, n_sealed_, length_, pages);
  }
  // Appends the pages as they were at an earlier point of the step, with n_sealed sealed pages and `length`
  // tokens. The ledger's tail must last, and the layer may protect only a sink and evict nothing.
  void list_pages(int first_visible, int n_sealed, int length, std::vector<PageView>& pages) const;

  // --- between steps ---
  // Keeps tokens [0, n_tokens), as ledger and tokens have done. n_tokens must not exceed length(), and the
  // page of n_tokens must not be freed. With a correction, n_tokens must be 0, lie in the tail, or lie after
  // the pages of a checkpoint. With eviction, n_tokens must begin a page or lie in the tail.
  void truncate(int n_tokens);
  // Makes this empty state a copy of `from`. Ledger, tokens and rows must be copies of those of `from`. May
  // throw std::bad_alloc.
  void copy_from(const HeadState& from);

  // Turns this empty state into the state of an imaged head, whose ledger already has its entries.
  void take_lengths();
  // Takes memory for the sealed pages [first, end) of an imaged head, if the sequence has them. The head's
  // tokens must be known. Returns the errors of reserve().
  bool hold_sealed(int first, int end);

 private:
  int dim() const { return head_.k.context.head_dim; }
  ObserverRows* rows_of(const OpenObservers& observers) const {
    return observers.rows == nullptr ? nullptr
                                     : &static_cast<HostObservers&>(*observers.rows).heads[tokens_index_];
  }
  void free_evicted_pages();
  bool is_gone(const TokenMask& mask) const { return layer_.evict > 0 && mask.count() == kPageTokens; }
  void correct(int page, const TokenMask& mask);
  void read_tail(Side side, int page, std::vector<float>& values) const;

  // Returns how many of the sequence's row entries hold n rows of this head.
  std::size_t entries_for(std::size_t n_rows) const {
    return rows_of_entry_ == 0 ? 0 : (n_rows + rows_of_entry_ - 1) / rows_of_entry_;
  }
  void drop_unused() noexcept;
  void write_rows(Side side, const TokenMask& tokens, const float* values);

  const Plan& plan_;
  const LayerPlan& layer_;
  const HeadPlan& head_;
  HeadPages pages_;
  int index_;                 // The index among the heads of the store.
  int row_index_;             // The index among the heads of the store of protected rows.
  int rows_of_entry_;         // 0 if the layer protects nothing
  int tokens_index_;          // Geometry::head_index
  int ahead_turn_;            // tokens of the open page at which this head seals ahead; 0 for never
  bool seals_ahead_ = false;  // True in a step in which this head seals ahead.
  bool ahead_ = false;        // True if page n_sealed_ is already encoded, in the ledger's ahead().

  int length_ = 0;  // The head's own length. Between steps, the ledger has an equal length.
  int n_sealed_ = 0;
  bool committed_ahead_ = false;  // The committed ahead_.
};

}  // namespace kvant
