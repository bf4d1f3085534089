// PageLedger: which page entries a sequence holds in the layers of one group, as integers alone.
//
// A layer group are the layers with the same sliding window and unquantized window, and an entry is 128
// tokens of all their KV heads and both sides: pages are opened, sealed, freed, shared and cut for all of
// them at once. Where an entry's bytes lie is the store's business (page_store.h).
//
// In order of tokens: sealed entries, then the tail, whose entries hold unquantized rows. Each tail entry but
// the open one at the end is whole; the open one has room for its tokens in steps of kTailStep. Entries that
// several sequences hold are copied before one of them writes (copy-on-write). During a step, what lies
// beyond the committed tokens is provisional; heads write there at their own pace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "cache/page_counts.h"

namespace kvant {

// An entry of a store: sealed, or of a tail with room for some tokens.
struct PageEntry {
  std::int32_t id = -1;  // -1: none
  int room = 0;          // tokens; 0: sealed
  bool held() const { return id >= 0; }
  bool operator==(const PageEntry&) const = default;
};

inline constexpr int kSealedRoom = 0;

// Where entries come from: the memory of one device.
class EntryStore {
 public:
  virtual ~EntryStore() = default;
  // An entry held once, with undefined contents: a sealed one, or a tail's with room for `room` tokens. None
  // where memory is exhausted; it may also throw std::bad_alloc, and has then taken nothing.
  virtual PageEntry take(int room) = 0;
  virtual void retain(PageEntry entry) = 0;
  virtual void release(PageEntry entry) noexcept = 0;
  virtual bool shared(PageEntry entry) const = 0;
  // Copies the first n tokens of a tail's entry to another one. Sealed entries: what has been written (n is
  // ignored). False, or std::bad_alloc, where memory is exhausted.
  virtual bool copy(PageEntry from, int n, PageEntry to) = 0;
};

// What a group's layers have in common.
struct GroupRules {
  int window = 0;             // tokens
  int sliding_window = 0;     // tokens; 0: full attention
  int prefill = 0;            // tokens of a prompt's block: the recipe's
  int tail_step = kTailStep;  // tokens in units of which a tail's open page takes memory
  // Pages that a step opens and seals stay in the tail until it ends: a device appends and seals all of a
  // step's pages before anyone attends to them, and layers that share another's cache attend to it later.
  bool tail_lasts = false;
  // Not: pages stay in the tail as they are, unquantized. Those that would be sealed and freed (sliding
  // window) are freed there, and count as sealed from then on.
  bool seals = true;
  bool operator==(const GroupRules&) const = default;
};

class PageLedger {
 public:
  // `store` outlives the ledger.
  PageLedger(const GroupRules& rules, EntryStore& store) : rules_(rules), store_(store) {}
  PageLedger(const PageLedger&) = delete;
  PageLedger& operator=(const PageLedger&) = delete;
  ~PageLedger();

  // --- the committed state ---
  int length() const { return length_; }            // tokens
  int n_sealed() const { return n_sealed_; }        // pages, freed ones included
  int first_page() const { return first_sealed_; }  // older ones were freed (sliding window)

  // Entries of pages, provisional ones included: of page >= first_page() that is sealed, or will be within
  // the step; of one that is in the tail, or was when the step began.
  PageEntry sealed(int page) const { return {sealed_[page - first_sealed_], kSealedRoom}; }
  PageEntry tail(int page) const { return tail_[page - first_tail_]; }
  // The entry of page n_sealed() into which heads encode before it is due; none where no head has.
  PageEntry ahead() const { return ahead_; }

  // --- a step: begin, reserve, maybe hold_ahead, then commit or abort ---
  void begin();
  // Takes the entries that n_tokens more need. False, or std::bad_alloc, where memory is exhausted: call
  // abort().
  bool reserve(int n_tokens, bool is_prompt);
  // Makes ahead() an entry that this sequence alone holds. As reserve().
  bool hold_ahead();
  int end() const { return end_; }                   // tokens at the step's end
  int end_sealed() const { return end_sealed_; }     // pages at the step's end
  bool decodes_one() const { return decodes_one_; }  // the step is of one decoded token
  void commit();
  void abort();

  // --- between steps ---
  // Becomes what `from` is, which shares all its entries. This one is empty. May throw std::bad_alloc.
  void copy_from(const PageLedger& from);
  // Becomes a sequence of these lengths, with entries whose contents are undefined. This one is empty. False,
  // or std::bad_alloc, where memory is exhausted: drop this ledger.
  bool take_all(int length, int n_sealed, int first_page);
  // Keeps the first n_tokens. A cut inside a sealed page makes it the tail's first: reopen(sealed entry, tail
  // entry) then is to write its first n_tokens % 128 rows into the tail's entry. False, or std::bad_alloc,
  // where memory is exhausted: drop this ledger.
  bool truncate(int n_tokens, const std::function<void(PageEntry, PageEntry)>& reopen);

  // Calls visit(page, entry) for every entry held, between steps; page n_sealed() twice, if it is also
  // ahead().
  template <class Visit>
  void for_each_entry(const Visit& visit) const {
    for (int i = 0; i < static_cast<int>(sealed_.size()); ++i)
      visit(first_sealed_ + i, PageEntry{sealed_[i]});
    for (int i = 0; i < static_cast<int>(tail_.size()); ++i) visit(first_tail_ + i, tail_[i]);
    if (ahead_.held()) visit(n_sealed_, ahead_);
  }

 private:
  struct Committed {
    std::size_t sealed = 0, tail = 0;  // entries
    PageEntry ahead;
  };

  // Of a tail's page with so many tokens.
  int room_for(int n_tokens) const {
    return (n_tokens + rules_.tail_step - 1) / rules_.tail_step * rules_.tail_step;
  }
  bool push_sealed(int n_pages);
  bool push_tail(int room);
  bool own_open_page(int room);
  void release(PageEntry& entry) noexcept;
  void release_tail_from(std::size_t first) noexcept;
  void release_sealed_from(std::size_t first) noexcept;
  void forget_freed();

  GroupRules rules_;
  EntryStore& store_;
  int length_ = 0;
  int n_sealed_ = 0;
  int first_sealed_ = 0;
  int first_tail_ = 0;
  std::vector<std::int32_t> sealed_;  // page first_sealed_ + i
  std::vector<PageEntry> tail_;       // page first_tail_ + i
  PageEntry ahead_;

  // The step.
  int end_ = 0, end_sealed_ = 0;
  bool decodes_one_ = false;
  bool seals_ahead_ = false;  // ahead_ is also the first of the step's sealed entries
  PageEntry replaced_;        // what the open page was before the step moved it
  Committed committed_;
};

}  // namespace kvant
