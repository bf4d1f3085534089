// SequencePages: what one sequence holds of pages, and SequenceStore: the memory that a cache keeps them in.
//
// A sequence's pages are entries of one ledger for each layer group, wherever their bytes lie. Ledgers and
// their moves in a step are written here, once. What a sequence keeps besides its entries differs by memory:
// the host has a state of each head (host_sequence.h), a device has entries for all heads at once
// (device_sequence.h). It goes through the same moves in the virtual functions below.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "base/result.h"
#include "cache/byte_stream.h"
#include "cache/cache_bytes.h"
#include "cache/head_image.h"
#include "cache/held_page.h"
#include "cache/memory_budget.h"
#include "cache/page_layout.h"
#include "cache/page_ledger.h"
#include "cache/recurrent_states.h"
#include "format/page_view.h"
#include "recipe/plan.h"

namespace kvant {

class SyntheticPages;

// Layers whose pages are opened, sealed and freed together (layer_groups.h).
struct PageGroup {
  GroupRules rules;
  std::vector<int> layers;        // ascending
  PageLayout layout;              // of a sealed entry in an image
  EntryStore* entries = nullptr;  // of the sequence store
  std::int64_t token_values = 0;  // K and V values of a token in all layers
};

// Lists the pages of one head, oldest first. Protected rows come before the tail.
struct ListedPages {
  std::vector<PageView> pages;
  // The pages lie in these copies where a device has the originals.
  std::shared_ptr<const void> copies;
};

class SequencePages {
 public:
  // Groups outlive the sequence.
  explicit SequencePages(const std::vector<PageGroup>& groups);
  virtual ~SequencePages() = default;
  SequencePages(const SequencePages&) = delete;
  SequencePages& operator=(const SequencePages&) = delete;

  int n_groups() const { return static_cast<int>(ledgers_.size()); }
  const PageLedger& ledger(int group) const { return *ledgers_[group]; }
  int length() const { return ledger(0).length(); }      // tokens
  int n_sealed() const { return ledger(0).n_sealed(); }  // pages
  // Pages that were sealed when the checkpoint was made; -1: there is none.
  int checkpoint_pages() const { return checkpoint_pages_; }
  // Whether a correction has summed up sealed pages, which it can't forget one by one.
  virtual bool sums_up() const = 0;

  // --- a step: begin, reserve, what attention does, then commit or abort ---
  // Marks the state that abort() returns to, whether the step has reserved or not.
  void begin();
  // Takes memory for n_tokens more. False, or std::bad_alloc, where memory is exhausted: call abort().
  bool reserve(int n_tokens, bool is_prompt);
  void commit();
  void abort();

  // --- between steps ---
  // Makes this empty sequence a copy of `from` that shares what it may. False, or std::bad_alloc, where
  // memory is exhausted: drop this sequence.
  bool copy_from(const SequencePages& from);
  // Keeps the first n_tokens, which the cache has found possible. False, or std::bad_alloc, where memory is
  // exhausted; an error where the device has failed: drop this sequence.
  Result<bool> truncate(int n_tokens);
  // Remembers the correction's sums for truncate(). May throw std::bad_alloc: then there is no checkpoint.
  void checkpoint();

  // --- bytes, between steps ---
  CacheBytes bytes() const;
  // Takes from `bytes`, which are this sequence's, what is in `counted`, and adds what this one shares.
  void leave_out_shared(std::set<HeldPage::Name>& counted, CacheBytes& bytes) const;
  using Visit = std::function<void(const HeldPage&)>;
  virtual void for_each_page(const Visit& visit) const = 0;
  // Adds the bytes of pages to those of each head (Geometry::head_index), by side.
  virtual void add_side_bytes(std::vector<std::int64_t>& k, std::vector<std::int64_t>& v) const = 0;
  // The tokens of a head that lie unquantized beside pages that were sealed before the step, ascending.
  virtual std::vector<int> protected_tokens(int layer, int kv_head) const = 0;
  // Lists the pages of a head that hold tokens from first_visible on, in host memory: those of a step once
  // its layer has attended, or between steps. The list lasts until the sequence changes. An error: the
  // device has failed.
  virtual Result<ListedPages> list_pages(int layer, int kv_head, int first_visible) const = 0;

  // --- images (sequence_image.cc has the order of their parts) ---
  // Pages of a group that an image has sealed: those of its ledger, or those that a cache which seals would
  // have.
  virtual int image_sealed(int group) const { return ledger(group).n_sealed(); }
  // Takes entries for all pages of an image, with undefined contents. As copy_from().
  bool take_pages(int group, int length, int n_sealed, int first_page);
  void set_checkpoint_pages(int n) { checkpoint_pages_ = n; }
  // Shows what the sequence holds besides its entries, head by head in the order of Geometry::head_index. An
  // error: the device has failed, or what an image can't say.
  using SeeHead = std::function<void(int layer, int kv_head, const HeadImage&)>;
  virtual Status save_heads(const SeeHead& see) const = 0;
  // Takes the same from next(layer, kv_head), which reads it. What can't be is refused by the reader.
  // n_sealed: pages of the first group that the image has sealed. False, or std::bad_alloc, where memory is
  // exhausted.
  using NextHead = std::function<HeadImage(int layer, int kv_head)>;
  virtual bool load_heads(ByteReader& from, int n_sealed, const NextHead& next) = 0;
  // Writes and reads a page of a group: its sealed entry in the canonical order, or its rows of the tail.
  // Errors are those of save_heads() and load_heads().
  virtual Status save_page(ByteWriter& to, int group, int page) const = 0;
  virtual bool load_page(ByteReader& from, int group, int page) = 0;

 protected:
  const PageGroup& group(int index) const { return groups_[index]; }
  PageLedger& mutable_ledger(int group) { return *ledgers_[group]; }
  // Returns how many tokens a page has; only the open page has fewer than kPageTokens.
  int rows_of(int group, int page) const;

 private:
  // What a sequence holds besides its entries goes through the same moves. Memory that is short is reported
  // as the public functions report it.
  virtual void begin_beside() {}
  virtual bool reserve_beside() = 0;  // after the ledgers
  virtual void commit_beside() = 0;   // after the ledgers
  virtual void abort_beside() = 0;    // before the ledgers
  virtual bool copy_beside(const SequencePages& from) = 0;
  // Writes the first n_tokens % kPageTokens rows of a sealed page into an entry of the tail.
  virtual Status reopen(int group, int n_tokens, PageEntry sealed, PageEntry tail) = 0;
  // It comes after the ledgers. forgets: sealed pages have gone, so a correction goes back to its checkpoint.
  virtual bool truncate_beside(int n_tokens, bool forgets) = 0;
  virtual void checkpoint_beside() = 0;
  // Adds the bytes of lists, scores and sums that are no pages, and deals out those of protected pages.
  virtual void add_bytes_beside(CacheBytes& bytes) const = 0;

  const std::vector<PageGroup>& groups_;
  std::vector<std::unique_ptr<PageLedger>> ledgers_;  // [n_groups]
  int checkpoint_pages_ = -1;
};

// Sequences go back to their store: it outlives them.
class SequenceStore {
 public:
  virtual ~SequenceStore() = default;
  SequenceStore(const SequenceStore&) = delete;
  SequenceStore& operator=(const SequenceStore&) = delete;

  virtual std::unique_ptr<SequencePages> make_sequence() = 0;  // an empty one

  const Plan& plan() const { return plan_; }
  const std::vector<PageGroup>& groups() const { return groups_; }
  int group_of(int layer) const { return group_of_layer_[layer]; }
  // Whether all groups that seal have as many pages sealed: whoever attends counts on it.
  virtual bool groups_seal_alike() const { return false; }

  const MemoryBudget& budget() const { return budget_; }
  virtual std::int64_t page_bytes_in_use() const = 0;  // pages that are held, each once

  // --- states of layers without attention ---
  RecurrentStates& states() { return states_; }
  const RecurrentStates& states() const { return states_; }
  // Null where memory is exhausted.
  std::shared_ptr<float> take_state();
  // Writes and reads a state in the order of an image; null stands for zeros. An error: the device has
  // failed.
  virtual Status save_state(ByteWriter& to, const float* state) = 0;
  virtual void load_state(const std::byte* from, float* state) = 0;

  // Waits until all that was written has arrived. An error: the device has failed.
  virtual Status finish() { return {}; }
  // Writes plausible pages instead of attention (synthetic_sequence.h).
  virtual std::unique_ptr<SyntheticPages> synthetic_pages(std::uint64_t seed) = 0;

 protected:
  // byte_limit: allocations beyond it fail; 0: none. The plan outlives the store, and so does the device that
  // keeps states; null: the host does.
  SequenceStore(const Plan& plan, std::int64_t byte_limit, PageDevice* keeps_states);
  MemoryBudget& mutable_budget() { return budget_; }
  // Groups come in the order of their first layers. `entries` is this store's.
  void add_group(const GroupRules& rules, const std::vector<int>& layers, EntryStore& entries);

  const Plan& plan_;

 private:
  // Gives back memory that no page needs. Whether there was any.
  virtual bool shrink() noexcept { return false; }

  MemoryBudget budget_;
  RecurrentStates states_;
  std::vector<PageGroup> groups_;
  std::vector<int> group_of_layer_;  // [n_layers]
};

}  // namespace kvant
