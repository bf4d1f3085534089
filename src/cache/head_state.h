// HeadState holds what one (sequence, layer, KV head) has besides its group's page entries, and moves the
// head through a step.
//
// The ledger says which entries hold the head's pages, and the store has their bytes. When a page is sealed,
// its protected tokens are copied to pages of their own ("protected rows") and masked out of the page.
// Evicted tokens are masked out and kept nowhere. A page is freed when all its tokens are gone. During a
// step, each head advances at its own pace. Everything after the committed marks is provisional, and
// committed data are not overwritten before commit().
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

// Says where the pages of one head are.
struct HeadPages {
  HostPageStore* store = nullptr;                  // The store of the layer group.
  const PageLedger* ledger = nullptr;              // The ledger of the sequence and group.
  const ProtectedStore* protected_rows = nullptr;  // The store of the head's protected rows.
};

// Returns after how many tokens of the open page, 2 to 127, a head encodes a page ahead
// (HeadState::seal_ahead). 0 means never. Some heads know only when a page is due which tokens it leaves out,
// and without a window nothing keeps a page until then.
int seal_ahead_turn(const Plan& plan, int layer, int kv_head);

class HeadState {
 public:
  // All references outlive the state.
  HeadState(const Plan& plan, int layer, int kv_head, const HeadPages& pages);
  HeadState(HeadState&&) noexcept = default;

  int layer() const { return head_.k.context.constants.layer; }
  int length() const { return length_; }                          // tokens, including provisional ones
  int n_sealed() const { return n_sealed_; }                      // pages, including provisional ones
  int first_page() const { return pages_.ledger->first_page(); }  // A sliding window has freed older pages.

  // --- a step: begin, reserve, any number of append / seal, then commit or abort ---
  // Marks the state that abort() returns to.
  void begin();
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
  // and heads are due at one token. So each layer and head encodes at another decoded token, and no token
  // takes much longer than the rest. The call comes after append() and does not change what queries see.
  void seal_ahead(std::vector<float>& scratch);
  void commit();  // The ledger commits first.
  void abort();   // The ledger aborts afterwards.

  // Returns the scores that choose which tokens a seal protects and evicts, or null if the layer needs none.
  // The backend updates the scores before it seals.
  TokenScores* scores() { return layer_.needs_scores() ? &attended_->scores : nullptr; }
  const TokenScores* scores() const { return layer_.needs_scores() ? &attended_->scores : nullptr; }
  // Returns the correction of the sealed pages, or null if the recipe has none.
  const CorrectionState* correction() const {
    return attended_ == nullptr || attended_->correction.empty() ? nullptr : &attended_->correction;
  }

  // Appends the pages that hold tokens >= first_visible, oldest first. Protected rows come before the tail.
  void list_pages(int first_visible, std::vector<PageView>& pages) const {
    list_pages(first_visible, n_sealed_, length_, pages);
  }
  // Appends the pages as they were at an earlier point of the step, with n_sealed sealed pages and `length`
  // tokens. The ledger's tail must last, and the layer may protect only a sink and evict nothing.
  void list_pages(int first_visible, int n_sealed, int length, std::vector<PageView>& pages) const;
  int n_sealed_before() const { return pages_.ledger->n_sealed(); }  // The number before the step.

  // --- between steps ---
  // Writes the first n_tokens tokens of a sealed page into a tail's entry, for PageLedger::truncate().
  // Protected tokens keep their unquantized values.
  void reopen(int page, int n_tokens, PageEntry sealed, PageEntry tail) const;
  // Keeps tokens [0, n_tokens), as the ledger has done. Returns false or throws std::bad_alloc if memory is
  // exhausted. The caller must then drop this state. n_tokens must not exceed length(), and the page of
  // n_tokens must not be freed. With a correction, n_tokens must be 0, lie in the tail, or lie after the
  // pages of a checkpoint. With eviction, n_tokens must begin a page or lie in the tail. Scores keep what the
  // queries of ended pages gave them.
  bool truncate(int n_tokens);
  // Remembers the correction for truncate().
  void checkpoint() {
    if (attended_ != nullptr) attended_->checkpoint = attended_->correction;
  }
  // Makes this empty state a copy of `from` that shares its full protected pages. The ledger must be a copy
  // of the ledger of `from`. Returns false or throws std::bad_alloc if memory is exhausted. The caller must
  // then drop this state.
  bool copy_from(const HeadState& from);

  // Convert to and from the interchange form of everything besides the entries. take() turns this empty state
  // into the imaged state. The ledger must already have its lengths. take() returns false or throws
  // std::bad_alloc if memory is exhausted. The caller must then drop this state.
  HeadImage image() const;
  bool take(HeadImage image);
  // Write and read this head's pages of a sealed entry in the entry's canonical bytes. Freed pages leave the
  // bytes unchanged.
  void export_page(int page, std::byte* entry) const;
  bool import_page(int page, const std::byte* entry);

  // Returns the bytes of the lists of protected tokens and of masked pages.
  static std::int64_t list_bytes(int n_protected, int n_masked_pages) {
    return static_cast<std::int64_t>(n_protected * sizeof(int) + n_masked_pages * sizeof(PageMask));
  }
  struct Bytes {
    // `lists` counts masks, token lists, scores, the correction and its checkpoint. `tail` includes pages
    // that are encoded ahead. `observers` counts the observers of the open page.
    std::int64_t protected_pages = 0, lists = 0, tail = 0, observers = 0;
    int protected_tokens = 0;
    int masked_pages = 0;  // sealed pages that leave tokens out
  };
  Bytes bytes() const;
  std::span<const int> protected_tokens() const { return protected_.tokens(); }  // in ascending order

  // Calls visit(page) for everything that this head holds in entries and protected pages, both sides
  // together. The caller adds the owner of the pages and what they count as.
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
  struct Marks {  // The committed state.
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

  // Holds the results of attention, which a step that seals or ends a page overwrites.
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
  int index_;                 // The index among the heads of the store.
  int ahead_turn_;            // tokens of the open page at which this head seals ahead; 0 for never
  bool seals_ahead_ = false;  // True in a step in which this head seals ahead.
  bool ahead_ = false;        // True if page n_sealed_ is already encoded, in the ledger's ahead().

  int length_ = 0;  // The head's own length. Between steps, the ledger has an equal length.
  int n_sealed_ = 0;
  ProtectedRows protected_;
  std::vector<PageMask> masks_;  // by page, ascending; with eviction, of every sealed page
  Marks committed_;
  std::unique_ptr<Attended> attended_;  // Null if the recipe neither protects by score, evicts nor corrects.
  std::unique_ptr<Saved> saved_;        // Copies for abort(), until the step ends.
};

}  // namespace kvant
