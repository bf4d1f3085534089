// PageLedger says which page entries a sequence holds in the layers of one group, as integers alone.
//
// The layers of a group have equal sliding windows and equal unquantized windows. An entry is 128 tokens of
// all KV heads and both sides. Pages are opened, sealed, freed, shared and cut for all of a group at once.
// The store knows where the bytes of an entry lie (page_store.h).
//
// In the order of tokens, sealed entries come first, then the tail, whose entries hold unquantized rows. The
// last entry of the tail is open and has room for its tokens in steps of GroupRules::tail_step; all others
// are whole. An entry that several sequences hold is copied before one of them writes (copy-on-write). During
// a step, everything after the committed tokens is provisional, and each head writes there at its own pace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/geometry.h"
#include "base/result.h"
#include "cache/page_counts.h"

namespace kvant {

// Names an entry of a store: a sealed entry, or an entry of a tail with room for some tokens.
struct PageEntry {
  std::int32_t id = -1;  // -1 means no entry
  int room = 0;          // tokens, or one of the rooms below
  bool held() const { return id >= 0; }
  bool operator==(const PageEntry&) const = default;
};

inline constexpr int kSealedRoom = 0;
// Entries of protected rows have this room. Ledgers do not hold such entries.
inline constexpr int kProtectedRoom = -1;

// Hands out entries in the memory of one device.
class EntryStore {
 public:
  virtual ~EntryStore() = default;
  // Returns an entry with undefined contents that is held once. The entry is sealed, or is a tail's entry
  // with room for `room` tokens. The result is not held if memory is exhausted; take() may also throw
  // std::bad_alloc, and has then taken nothing.
  virtual PageEntry take(int room) = 0;
  virtual void retain(PageEntry entry) = 0;
  virtual void release(PageEntry entry) noexcept = 0;
  virtual bool shared(PageEntry entry) const = 0;
  // Copies the first n tokens of a tail's entry to another entry. For sealed entries, copies all that has
  // been written and ignores n. Returns false or throws std::bad_alloc if memory is exhausted.
  virtual bool copy(PageEntry from, int n, PageEntry to) = 0;
};

// Names one side of a head in an entry, and the place of the side's bytes in the bytes of an image.
struct PagePart {
  int layer = 0, kv_head = 0;
  Side side = Side::key;
  int n_rows = 0;  // the first rows of an unsealed entry
  std::size_t place = 0, bytes = 0;
};

// Hands out entries whose bytes sequences count, and read and write for images.
class PartStore : public EntryStore {
 public:
  // Return the bytes of an entry, and of one side of a head in the entry. A sealed entry has no bytes of
  // heads that have evicted all its tokens.
  virtual std::int64_t bytes_of(PageEntry entry) const = 0;
  virtual std::int64_t side_bytes(PageEntry entry, int layer, int kv_head, Side side) const = 0;
  // Write and read parts of an entry in canonical bytes: sealed pages, or rows as short pages of the tail's
  // format. save() leaves out parts that have no memory, and its error says that the device has failed.
  // load() makes the other parts of the entry undefined, and returns the errors of copy().
  virtual Status save(PageEntry entry, std::span<const PagePart> parts, std::byte* image) const = 0;
  virtual bool load(const std::byte* image, std::span<const PagePart> parts, PageEntry entry) = 0;
};

// Holds the rules that the layers of a group share.
struct GroupRules {
  int window = 0;             // tokens
  int sliding_window = 0;     // tokens; 0 for full attention
  int prefill = 0;            // tokens of a prompt's block, as the recipe says
  int tail_step = kTailStep;  // the open page of a tail takes memory in steps of this many tokens
  // True if pages that a step opens and seals stay in the tail until the step ends. A device appends and
  // seals all pages of a step before anyone attends to them, and layers that share another layer's cache
  // attend later.
  bool tail_lasts = false;
  // False if pages stay in the tail, unquantized. Pages that would be sealed and then freed (sliding window)
  // are freed in the tail, and count as sealed from then on.
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
  int first_page() const { return first_sealed_; }  // A sliding window has freed older pages.

  // Return the entries of pages, including provisional entries. sealed() takes a page >= first_page() that is
  // sealed or will be within the step. tail() takes a page that is in the tail, or was when the step began.
  PageEntry sealed(int page) const { return {sealed_[page - first_sealed_], kSealedRoom}; }
  PageEntry tail(int page) const { return tail_[page - first_tail_]; }
  // Returns the entry of page n_sealed() into which heads encode before the page is due. The entry is not
  // held if no head has encoded ahead.
  PageEntry ahead() const { return ahead_; }

  // --- a step: begin, reserve, maybe hold_ahead, then commit or abort ---
  void begin();
  // Takes the entries that n_tokens more tokens need. Returns false or throws std::bad_alloc if memory is
  // exhausted. The caller must then call abort().
  bool reserve(int n_tokens, bool is_prompt);
  // Makes ahead() an entry that only this sequence holds. Returns the errors of reserve().
  bool hold_ahead();
  int end() const { return end_; }                   // tokens at the step's end
  int end_sealed() const { return end_sealed_; }     // pages at the step's end
  bool decodes_one() const { return decodes_one_; }  // True if the step is one decoded token.
  void commit();
  void abort();

  // --- between steps ---
  // Makes this empty ledger a copy of `from` that shares all its entries. May throw std::bad_alloc.
  void copy_from(const PageLedger& from);
  // Makes this empty ledger a sequence of these lengths, with entries whose contents are undefined. Returns
  // false or throws std::bad_alloc if memory is exhausted. The caller must then drop the ledger.
  bool take_all(int length, int n_sealed, int first_page);
  // Keeps the first n_tokens tokens. A cut inside a sealed page makes that page the first of the tail. The
  // ledger then calls reopen(sealed entry, tail entry), which writes the first n_tokens % 128 rows of the
  // page into the tail's entry. Returns false or throws std::bad_alloc if memory is exhausted. The caller
  // must then drop the ledger.
  bool truncate(int n_tokens, const std::function<void(PageEntry, PageEntry)>& reopen);

  // Calls visit(page, entry) for every entry that is held between steps. Page n_sealed() is visited twice if
  // the page also has an entry ahead().
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

  // Returns the room of a tail's page with n_tokens tokens.
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
  std::vector<std::int32_t> sealed_;  // [i] is page first_sealed_ + i
  std::vector<PageEntry> tail_;       // [i] is page first_tail_ + i
  PageEntry ahead_;

  // The members below describe the step.
  int end_ = 0, end_sealed_ = 0;
  bool decodes_one_ = false;
  bool seals_ahead_ = false;  // True if ahead_ is also the first of the step's sealed entries.
  PageEntry replaced_;        // The entry of the open page before the step replaced it.
  Committed committed_;
};

}  // namespace kvant
