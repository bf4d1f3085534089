// SequencePages holds the pages of one sequence, and SequenceStore owns the memory of a cache.
//
// The pages of a sequence are entries of one ledger for each layer group, wherever their bytes lie.
// SequencePages moves the ledgers, the choice and the rows of protected tokens, and a correction's sums
// through a step.
// Other data of a sequence differ by memory. Host memory has a state for each head (host_sequence.h), and a
// device has entries for all heads at once (device_sequence.h). The virtual functions below move these data
// through the step.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "base/result.h"
#include "cache/byte_stream.h"
#include "cache/cache_bytes.h"
#include "cache/entry_hold.h"
#include "cache/head_image.h"
#include "cache/held_page.h"
#include "cache/memory_budget.h"
#include "cache/page_layout.h"
#include "cache/page_ledger.h"
#include "cache/recurrent_states.h"
#include "format/page_view.h"
#include "recipe/plan.h"

namespace kvant {

class SequenceStore;

// Describes layers whose pages are opened, sealed and freed together (layer_groups.h).
struct PageGroup {
  GroupRules rules;
  std::vector<int> layers;        // in ascending order
  PageLayout layout;              // The layout of a sealed entry in an image.
  PartStore* entries = nullptr;   // The entries of the sequence store.
  std::int64_t token_values = 0;  // K and V values of a token in all layers of the group
};

// Describes the entries that hold the rows of protected tokens, unquantized. Row i of a head belongs to token
// i of ProtectedTokens::Head.
struct ProtectedEntries {
  PartStore* entries = nullptr;    // The entries of the sequence store.
  std::vector<int> rows_of_layer;  // The rows of each head in an entry; 0 if the layer protects nothing.
};

// Lists the pages of one head, oldest first. Protected rows come before the tail.
struct ListedPages {
  std::vector<PageView> pages;
  // If a device has the originals, the pages lie in these copies.
  std::shared_ptr<const void> copies;
};

// Calls visit(layer, kv_head, Geometry::head_index) for all KV heads.
template <class Visit>
void for_each_head(const Geometry& geometry, const Visit& visit) {
  for (int layer = 0, index = 0; layer < geometry.n_layers; ++layer) {
    for (int h = 0; h < geometry.kv_heads(layer); ++h) visit(layer, h, index++);
  }
}

// Holds numbers of all heads besides pages, in the memory of the pages. The numbers are a correction's sums
// over the sealed pages of a sequence, or the observers of its open page. Forks share the numbers.
struct SequenceNumbers {
  virtual ~SequenceNumbers() = default;
};

// The tokens from `first` on observe; -1 means that there are no observers.
struct OpenObservers {
  std::shared_ptr<SequenceNumbers> rows;
  int first = -1;
};

class SequencePages {
 public:
  // The store outlives the sequence.
  explicit SequencePages(const SequenceStore& store);
  virtual ~SequencePages() = default;
  SequencePages(const SequencePages&) = delete;
  SequencePages& operator=(const SequencePages&) = delete;

  int n_groups() const { return static_cast<int>(ledgers_.size()); }
  const PageLedger& ledger(int group) const { return *ledgers_[group]; }
  int length() const { return ledger(0).length(); }      // tokens
  int n_sealed() const { return ledger(0).n_sealed(); }  // pages
  // Returns how many pages were sealed at the checkpoint, or -1 without a checkpoint.
  int checkpoint_pages() const { return checkpoint_pages_; }
  // Return the protected tokens when the step began, and as the step leaves them. next_tokens() is null in
  // steps that neither end nor seal a page, and between steps.
  const std::shared_ptr<const ProtectedTokens>& tokens() const { return tokens_; }
  const std::shared_ptr<ProtectedTokens>& next_tokens() const { return next_tokens_; }
  const ProtectedTokens* newest_tokens() const {
    return next_tokens_ == nullptr ? tokens_.get() : next_tokens_.get();
  }
  // Returns the newest protected tokens of a head in the first n_sealed pages, in ascending order.
  std::vector<int> protected_tokens(int layer, int kv_head, int n_sealed) const;
  // Returns the protected tokens of pages that were sealed before the step.
  std::vector<int> protected_tokens(int layer, int kv_head) const {
    return protected_tokens(layer, kv_head, ledger_of(layer).n_sealed());
  }
  // Return the entries of protected rows when the step began, and as the step leaves them.
  const std::vector<EntryHold>& rows() const { return rows_; }
  const std::vector<EntryHold>& newest_rows() const { return next_rows_.empty() ? rows_ : next_rows_; }
  // Return the observers when the step began, and as the step leaves them.
  const OpenObservers& observers() const { return observers_; }
  const OpenObservers& next_observers() const { return next_observers_; }
  // Return the correction's sums when the step began, as the step leaves them if it seals pages, and at the
  // checkpoint. Null stands for zeros, between steps.
  const std::shared_ptr<SequenceNumbers>& sums() const { return sums_; }
  const std::shared_ptr<SequenceNumbers>& next_sums() const { return next_sums_; }
  const std::shared_ptr<SequenceNumbers>& checkpoint_sums() const { return checkpoint_sums_; }

  // --- a step: begin, reserve, what attention does, then commit or abort ---
  // Marks the state that abort() returns to, whether the step has reserved or not.
  void begin();
  // Takes memory for n_tokens more tokens. Returns false or throws std::bad_alloc if memory is exhausted. The
  // caller must then call abort().
  bool reserve(int n_tokens, bool is_prompt);
  void commit();
  void abort();

  // --- between steps ---
  // Makes this empty sequence a copy of `from` that shares all pages. May throw std::bad_alloc. The caller
  // must then drop this sequence.
  void copy_from(const SequencePages& from);
  // Keeps the first n_tokens tokens, after the cache has found the cut possible. Returns false or throws
  // std::bad_alloc if memory is exhausted, and returns an error if the device has failed. The caller must
  // then drop this sequence.
  Result<bool> truncate(int n_tokens);
  // Remembers the correction's sums for truncate().
  void checkpoint() {
    checkpoint_sums_ = sums_;
    checkpoint_pages_ = n_sealed();
  }

  // --- bytes, between steps ---
  CacheBytes bytes() const;
  // Subtracts what is in `counted` from `bytes`, which are this sequence's bytes. Adds to `counted` what
  // this sequence shares.
  void leave_out_shared(std::map<HeldPage::Name, std::int64_t>& counted, CacheBytes& bytes) const;
  using Visit = std::function<void(const HeldPage&)>;
  void for_each_page(const Visit& visit) const;
  // Adds the bytes of pages to k and v, which are indexed by Geometry::head_index.
  void add_side_bytes(std::vector<std::int64_t>& k, std::vector<std::int64_t>& v) const;
  // Lists the pages of a head that hold tokens from first_visible on, in host memory. The caller may list
  // them between steps, or in a step after the layer has attended. The list is valid until the sequence
  // changes. An error says that the device has failed.
  virtual Result<ListedPages> list_pages(int layer, int kv_head, int first_visible) const = 0;
  // Lists the pages of a head of `layer` that hold tokens from first_visible on, if n_sealed pages are sealed
  // and the head has `length` tokens. Calls page(view, entry) for sealed pages, then for pages of protected
  // rows, and then for unsealed pages. Views lack their bytes. `tokens` are the head's protected tokens.
  template <class Page>
  void list_head(int layer, const std::vector<int>& tokens, const std::vector<PageMask>& masks,
                 int first_visible, int n_sealed, int length, const Page& page) const;

  // --- images (sequence_image.cc has the order of their parts) ---
  // Returns how many pages of a group an image has sealed. The number comes from the ledger, or from a cache
  // that seals.
  virtual int image_sealed(int group) const { return ledger(group).n_sealed(); }
  // Takes entries with undefined contents for all pages of an image. Returns the errors of truncate().
  bool take_pages(int group, int length, int n_sealed, int first_page);
  void set_checkpoint_pages(int n) { checkpoint_pages_ = n; }
  // Calls `see` with the auxiliary data of each head (HeadImage), in the order of Geometry::head_index. An
  // error says that the device has failed, or what an image cannot represent.
  using SeeHead = std::function<void(int layer, int kv_head, const HeadImage&)>;
  Status save_heads(const SeeHead& see) const;
  // Takes the image of each head from next(layer, kv_head), which reads it. The reader refuses impossible
  // data. n_sealed counts the sealed pages of the image's first group. Returns false or throws std::bad_alloc
  // if memory is exhausted.
  using NextHead = std::function<HeadImage(int layer, int kv_head)>;
  bool load_heads(ByteReader& from, int n_sealed, const NextHead& next);
  // Write and read a page of a group: its sealed entry in the canonical order, or its rows of the tail.
  // save_page() returns the errors of save_heads(), and load_page() those of load_heads().
  Status save_page(ByteWriter& to, int group, int page) const;
  bool load_page(ByteReader& from, int group, int page);

 protected:
  const PageGroup& group(int index) const;
  const PageLedger& ledger_of(int layer) const;
  PageLedger& mutable_ledger(int group) { return *ledgers_[group]; }
  // Calls visit(sums) for sums() and checkpoint_sums(), unless null. Equal sums are visited once.
  template <class See>
  void for_each_sums(const See& visit) const {
    if (sums_ != nullptr) visit(sums_);
    if (checkpoint_sums_ != nullptr && checkpoint_sums_ != sums_) visit(checkpoint_sums_);
  }
  void set_sums(std::shared_ptr<SequenceNumbers> sums, std::shared_ptr<SequenceNumbers> at_checkpoint) {
    sums_ = std::move(sums);
    checkpoint_sums_ = std::move(at_checkpoint);
  }

 private:
  // These functions move the data that only one kind of memory has. Like the public functions, they report
  // short memory.
  virtual bool on_reserve() { return true; }  // The data of this class go first.
  virtual void on_commit() {}                 // The data of this class go first.
  virtual void on_abort() {}                  // The data of this class go first, but ledgers follow.
  virtual void on_copy(const SequencePages& /*from*/) {}
  virtual void on_truncate(int /*n_tokens*/) {}  // The data of this class go first.
  // Return sums and observers that a step may change. In host memory, the sums begin as a copy of sums(). A
  // device's library writes all sums of a step that seals. Observers begin as a copy of `from`, unless `from`
  // is null. A null result means that memory is exhausted.
  virtual std::shared_ptr<SequenceNumbers> make_sums() = 0;
  virtual std::shared_ptr<SequenceNumbers> make_observers(const SequenceNumbers* from) = 0;
  virtual std::int64_t sums_bytes(const SequenceNumbers& sums) const = 0;
  virtual std::int64_t observer_bytes() const = 0;  // the bytes of observers()
  // Adds sums and observers to the images of all heads, by Geometry::head_index. Returns the errors of
  // save_heads().
  virtual Status on_save(std::vector<HeadImage>& images) const = 0;
  // Takes sums and observers from the images of all heads. The data of this class go first, with observers
  // of undefined contents. Returns false or throws std::bad_alloc if memory is exhausted.
  virtual bool on_load(std::vector<HeadImage>& images) = 0;

  // Lists parts of an entry, which lie one after another in `bytes` bytes of an image.
  struct PartList {
    std::vector<PagePart> parts;
    std::size_t bytes = 0;
    void add(PagePart part) {
      part.place = bytes;
      bytes += part.bytes;
      parts.push_back(part);
    }
  };
  // Returns the entry of a page, between steps.
  PageEntry page_entry(int group, int page) const {
    const PageLedger& of_group = ledger(group);
    return page < of_group.n_sealed() ? of_group.sealed(page) : of_group.tail(page);
  }
  // Returns the parts of an entry of a group with n_rows rows.
  PartList entry_parts(int group, bool is_sealed, int n_rows) const;
  // Return the parts of a page of a group, and the parts of an entry of protected rows with the rows that
  // the heads of an image have there. Without `evicted`, parts whose tokens are all evicted are left out.
  PartList parts_of(int group, int page, bool evicted) const;
  PartList row_parts(std::size_t entry, const std::vector<HeadImage>& images) const;
  bool may_protect(const ProtectedTokens::Head& wanted, int layer, int n_sealed) const;
  // Takes entries for the protected rows of an image, whose pages are taken, and reads the rows.
  bool load_rows(const std::vector<HeadImage>& images);
  void reserve_tokens();
  bool reserve_observers();
  void truncate_tokens(int n_tokens);
  // Writes the first n_tokens % kPageTokens rows of a sealed page into an entry of the tail. Returns the
  // errors of truncate().
  Result<bool> reopen(int group, int n_tokens, PageEntry sealed, PageEntry tail) const;
  // Copies unquantized rows into `image`, which holds the parts `open` of the open page. The rows are those
  // of protected tokens in [first, first + n). An error says that the device has failed.
  Status put_protected_rows(int first, int n, const PartList& open, std::byte* image) const;
  int most_sealed() const;  // pages of the group with the most, including provisional ones
  template <class See>
  void for_each_row_count(const See& see) const;
  bool reserve_rows();
  bool push_rows(std::vector<EntryHold>& to) const;
  void release_unused_rows();
  bool is_evicted(int layer, int kv_head, int page, PageEntry entry) const;
  std::int64_t evicted_bytes(int group, int page, PageEntry entry) const;
  std::int64_t sink_in_protected_rows() const;

  const SequenceStore& store_;
  std::vector<std::unique_ptr<PageLedger>> ledgers_;  // [n_groups]
  std::shared_ptr<const ProtectedTokens> tokens_;
  std::shared_ptr<ProtectedTokens> next_tokens_;
  std::vector<EntryHold> rows_, next_rows_;  // A step that seals makes next_rows_.
  OpenObservers observers_, next_observers_;
  std::shared_ptr<SequenceNumbers> sums_, next_sums_, checkpoint_sums_;
  int checkpoint_pages_ = -1;
};

// Sequences return their memory to the store, so the store outlives them.
class SequenceStore {
 public:
  virtual ~SequenceStore() = default;
  SequenceStore(const SequenceStore&) = delete;
  SequenceStore& operator=(const SequenceStore&) = delete;

  virtual std::unique_ptr<SequencePages> make_sequence() = 0;  // Makes an empty sequence.

  const Plan& plan() const { return plan_; }
  // Returns the tokens of an empty sequence, or null if sequences keep no tokens. Sealed pages then leave out
  // the sink at most.
  const std::shared_ptr<const ProtectedTokens>& no_tokens() const { return no_tokens_; }
  // Returns whether sequences keep the queries that observe, because scores choose tokens.
  bool observes() const;
  const ProtectedEntries& protected_entries() const { return protected_entries_; }
  const std::vector<PageGroup>& groups() const { return groups_; }
  int group_of(int layer) const { return group_of_layer_[layer]; }
  // Returns whether all groups that seal have an equal number of sealed pages, which attention on a device
  // requires.
  virtual bool groups_seal_alike() const { return false; }

  const MemoryBudget& budget() const { return budget_; }
  virtual std::int64_t page_bytes_in_use() const = 0;  // Each held page counts once.

  // --- states of layers without attention ---
  RecurrentStates& states() { return states_; }
  const RecurrentStates& states() const { return states_; }
  // Returns null if memory is exhausted.
  std::shared_ptr<float> take_state();
  // Write and read a state in the order of an image. Null stands for zeros. An error says that the device has
  // failed.
  virtual Status save_state(ByteWriter& to, const float* state) = 0;
  virtual void load_state(const std::byte* from, float* state) = 0;

  // Waits until all writes have arrived. An error says that the device has failed.
  virtual Status finish() { return {}; }

 protected:
  // Allocations beyond byte_limit fail; 0 means no limit. The plan outlives the store, and so does the device
  // that keeps states. Host memory keeps states if the device is null.
  SequenceStore(const Plan& plan, std::int64_t byte_limit, PageDevice* keeps_states, bool keeps_tokens);
  MemoryBudget& mutable_budget() { return budget_; }
  // Groups come in the order of their first layers. `entries` is this store's.
  void add_group(const GroupRules& rules, const std::vector<int>& layers, PartStore& entries);
  void set_protected_entries(PartStore& entries, std::vector<int> rows_of_layer) {
    protected_entries_ = {&entries, std::move(rows_of_layer)};
  }

  const Plan& plan_;

 private:
  // Gives back memory that no page needs, and returns whether there was any.
  virtual bool shrink() noexcept { return false; }

  std::shared_ptr<const ProtectedTokens> no_tokens_;
  ProtectedEntries protected_entries_;
  MemoryBudget budget_;
  RecurrentStates states_;
  std::vector<PageGroup> groups_;
  std::vector<int> group_of_layer_;  // [n_layers]
};

template <class Page>
void SequencePages::list_head(int layer, const std::vector<int>& tokens, const std::vector<PageMask>& masks,
                              int first_visible, int n_sealed, int length, const Page& page) const {
  const PageLedger& of_layer = ledger_of(layer);
  const int first_page = first_visible / kPageTokens;
  auto mask = masks.begin();
  for (int i = std::max(of_layer.first_page(), first_page); i < n_sealed; ++i) {
    while (mask != masks.end() && mask->page < i) ++mask;
    PageView view{.first_token = i * kPageTokens, .n_tokens = kPageTokens};
    if (mask != masks.end() && mask->page == i) view.masked = mask->mask;
    page(view, of_layer.sealed(i));
  }
  const int n_protected = n_sealed > 0 ? static_cast<int>(tokens.size()) : 0;
  const int n_rows = store_.protected_entries().rows_of_layer[layer];
  for (int row = 0; row < n_protected; row += n_rows) {
    page(PageView{.n_tokens = std::min(n_rows, n_protected - row),
                  .is_protected = true,
                  .protected_tokens = &tokens[row]},
         newest_rows()[row / n_rows].entry());
  }
  for (int i = std::max(n_sealed, first_page); i * kPageTokens < length; ++i) {
    page(
        PageView{.first_token = i * kPageTokens, .n_tokens = std::min(kPageTokens, length - i * kPageTokens)},
        of_layer.tail(i));
  }
}

}  // namespace kvant
