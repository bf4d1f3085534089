// HeadState: what one (sequence, layer, KV head) has beside its group's page entries, and its moves on them
// in a step.
//
// Which entries hold its pages is in the ledger, their bytes are in the store. Protected tokens are copied to
// pages of their own ("protected rows") when their page is sealed, and are masked out of it. Evicted tokens
// are masked out of their page and kept nowhere; a page of which nothing is left is freed. During a step,
// heads advance by themselves; everything beyond the committed marks is provisional, and nothing committed is
// overwritten before commit().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/matrix_view.h"
#include "base/token_mask.h"
#include "cache/correction_state.h"
#include "cache/head_image.h"
#include "cache/held_page.h"
#include "cache/page_ledger.h"
#include "cache/page_pool.h"
#include "cache/page_store.h"
#include "cache/protected_rows.h"
#include "cache/token_scores.h"
#include "recipe/plan.h"

namespace kvant {

// Where the pages of one head are.
struct HeadPages {
  HostPageStore* store = nullptr;                  // of its layer group
  const PageLedger* ledger = nullptr;              // of its sequence and group
  const ProtectedStore* protected_rows = nullptr;  // of the head
};

// When a head encodes a page before it is due (HeadState::seal_ahead): after that many tokens of the open
// page, 2 to 127. 0: never, since what is left out of its pages is only known when they are due, or nothing
// holds them until then.
int seal_ahead_turn(const Plan& plan, int layer, int kv_head);

class HeadState {
 public:
  // All references outlive the state.
  HeadState(const Plan& plan, int layer, int kv_head, const HeadPages& pages);
  HeadState(HeadState&&) noexcept = default;

  int layer() const { return head_.k.context.constants.layer; }
  int length() const { return length_; }                          // tokens, provisional ones included
  int n_sealed() const { return n_sealed_; }                      // pages, likewise
  int first_page() const { return pages_.ledger->first_page(); }  // older ones were freed (sliding window)

  // --- a step: begin, reserve, any number of append / seal, then commit or abort ---
  // Marks the state that abort() returns to.
  void begin();
  // Whether the step of a ledger that has reserved is this head's turn to seal ahead: the ledger then is to
  // hold an entry for it.
  bool seals_ahead() const;
  // Takes memory for what its ledger has reserved. False, or std::bad_alloc, when memory is exhausted: call
  // abort().
  bool reserve();
  // Writes n new tokens at the end. k, v: [n, d], transformed, finite.
  void append(MatrixView<const float> k, MatrixView<const float> v);
  // Seals the oldest unsealed pages until n_pages are sealed. scratch: resized as needed.
  void seal_until(int n_pages, std::vector<float>& scratch);
  // Encodes the next page to be sealed before it is due, where the window still holds it. Pages of all layers
  // and heads are due at the same token; of decoded tokens each layer and head has another one for this,
  // so that no token takes much longer than the rest. After append; what queries see stays as it is.
  void seal_ahead(std::vector<float>& scratch);
  void commit();  // after the ledger's
  void abort();   // before the ledger's

  // The scores that choose which tokens a seal protects and evicts; the backend feeds it before it seals.
  // Null when the layer needs none.
  TokenScores* scores() { return layer_.needs_scores() ? &attended_->scores : nullptr; }
  const TokenScores* scores() const { return layer_.needs_scores() ? &attended_->scores : nullptr; }
  // The correction of the sealed pages; null when the recipe has none.
  const CorrectionState* correction() const {
    return attended_ == nullptr || attended_->correction.empty() ? nullptr : &attended_->correction;
  }

  // The pages that hold tokens >= first_visible, oldest first; protected rows come before the tail.
  void list_pages(int first_visible, std::vector<PageView>& pages) const {
    list_pages(first_visible, n_sealed_, length_, pages);
  }
  // The same at an earlier point of the step, with so many pages sealed and so many tokens, where the
  // ledger's tail lasts and nothing but a sink is protected or evicted.
  void list_pages(int first_visible, int n_sealed, int length, std::vector<PageView>& pages) const;
  int n_sealed_before() const { return pages_.ledger->n_sealed(); }  // the step

  // --- between steps ---
  // Writes the first n_tokens of a sealed page into a tail's entry, protected ones as they are kept: for
  // PageLedger::truncate().
  void reopen(int page, int n_tokens, PageEntry sealed, PageEntry tail) const;
  // Keeps tokens [0, n_tokens), as the ledger has done. False, or std::bad_alloc, when memory is exhausted:
  // drop this state.
  // Requires n_tokens <= length(), that the page of n_tokens was not freed, with a correction that n_tokens
  // is 0, lies in the tail, or behind the pages of a checkpoint, and with eviction that it is a page's first
  // token or lies in the tail. Scores keep what the queries of pages that had ended gave them.
  bool truncate(int n_tokens);
  // Remembers the correction for truncate().
  void checkpoint() {
    if (attended_ != nullptr) attended_->checkpoint = attended_->correction;
  }
  // Makes this empty state a copy of `from` that shares its full protected pages; its ledger is to be one of
  // from's. False, or std::bad_alloc, when memory is exhausted: drop this state.
  bool copy_from(const HeadState& from);

  // For interchange: all that lies beside the entries. take() makes this empty state what was imaged, once
  // its ledger has its lengths. False, or std::bad_alloc, when memory is exhausted: drop this state.
  HeadImage image() const;
  bool take(HeadImage image);
  // This head's pages of a sealed entry, in the entry's canonical bytes; evicted ones are left as they are.
  void export_page(int page, std::byte* entry) const;
  bool import_page(int page, const std::byte* entry);

  // Bytes of the lists of protected tokens and of masked pages.
  static std::int64_t list_bytes(int n_protected, int n_masked_pages) {
    return static_cast<std::int64_t>(n_protected * sizeof(int) + n_masked_pages * sizeof(PageMask));
  }
  struct Bytes {
    // lists: masks and token lists of protected rows, scores, the correction and its checkpoint; tail: with
    // what is encoded ahead; observers: of the open page.
    std::int64_t protected_pages = 0, lists = 0, tail = 0, observers = 0;
    int protected_tokens = 0;
    int masked_pages = 0;  // sealed pages that have tokens left out
  };
  Bytes bytes() const;
  std::span<const int> protected_tokens() const { return protected_.tokens(); }  // ascending

  // Calls visit(page) with all that this head holds of entries and protected pages, both sides together. The
  // caller knows whose they are, and what they count as.
  template <class Visit>
  void for_each_page(const Visit& visit) const {
    pages_.ledger->for_each_entry([&](int page, PageEntry entry) {
      if (!has_pages(page, entry)) return;
      const bool sealed = entry.room == kSealedRoom && page < n_sealed_;
      const auto kind = sealed ? HeldPage::Kind::sealed : HeldPage::Kind::tail;
      visit(HeldPage{.name = {0, kind, entry.room, entry.id},
                     .page = page,
                     .shared = pages_.store->shared(entry),
                     .bytes = pages_.store->head_bytes(entry.room, index_)});
    });
    protected_.for_each_page([&](PageId page, bool shared, std::int64_t bytes) {
      visit(HeldPage{.name = {0, HeldPage::Kind::beside, 0, page}, .shared = shared, .bytes = bytes});
    });
  }

 private:
  struct Marks {  // the committed state
    std::size_t masks = 0;
    bool ahead = false;
  };

  int dim() const { return head_.k.context.head_dim; }
  TokenMask to_protect(int page) const;
  void evict(std::size_t n_protected);
  void free_evicted_pages();
  bool is_gone(const PageMask& page) const { return layer_.evict > 0 && page.mask.count() == kPageTokens; }
  bool has_pages(int page, PageEntry entry) const;
  void save_for_abort(int pages_due);
  void correct(int page, const TokenMask& mask);
  void read_tail(Side side, int page, std::vector<float>& values) const;

  // What attention leaves behind, and what a step that seals or ends a page would overwrite.
  struct Attended {
    TokenScores scores;
    CorrectionState correction, checkpoint;
  };
  struct Saved {
    std::vector<PageMask> masks;
    TokenScores scores;
    CorrectionState correction;
  };

  const Plan& plan_;
  const LayerPlan& layer_;
  const HeadPlan& head_;
  HeadPages pages_;
  int index_;                 // among the heads of the store
  int ahead_turn_;            // tokens of the open page when it is this head's turn to seal ahead; 0: never
  bool seals_ahead_ = false;  // in this step
  bool ahead_ = false;        // page n_sealed_ is encoded already: in the ledger's ahead()

  int length_ = 0;  // how far this head is; between steps, what the ledger says
  int n_sealed_ = 0;
  ProtectedRows protected_;
  std::vector<PageMask> masks_;  // by page, ascending; with eviction, of every sealed page
  Marks committed_;
  std::unique_ptr<Attended> attended_;  // null where the recipe neither chooses, evicts nor corrects
  std::unique_ptr<Saved> saved_;        // of the step, until it is closed
};

}  // namespace kvant
