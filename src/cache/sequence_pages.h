// SequencePages holds the pages of one sequence, and SequenceStore owns the memory of a cache.
//
// The pages of a sequence are entries of one ledger for each layer group, wherever their bytes lie.
// SequencePages moves the ledgers through a step. Other data of a sequence differ by memory. Host memory has
// a state for each head (host_sequence.h), and a device has entries for all heads at once
// (device_sequence.h). The virtual functions below move these data through the step.
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

// Describes layers whose pages are opened, sealed and freed together (layer_groups.h).
struct PageGroup {
  GroupRules rules;
  std::vector<int> layers;        // in ascending order
  PageLayout layout;              // The layout of a sealed entry in an image.
  EntryStore* entries = nullptr;  // The entries of the sequence store.
  std::int64_t token_values = 0;  // K and V values of a token in all layers of the group
};

// Lists the pages of one head, oldest first. Protected rows come before the tail.
struct ListedPages {
  std::vector<PageView> pages;
  // If a device has the originals, the pages lie in these copies.
  std::shared_ptr<const void> copies;
};

class SequencePages {
 public:
  // The groups outlive the sequence.
  explicit SequencePages(const std::vector<PageGroup>& groups);
  virtual ~SequencePages() = default;
  SequencePages(const SequencePages&) = delete;
  SequencePages& operator=(const SequencePages&) = delete;

  int n_groups() const { return static_cast<int>(ledgers_.size()); }
  const PageLedger& ledger(int group) const { return *ledgers_[group]; }
  int length() const { return ledger(0).length(); }      // tokens
  int n_sealed() const { return ledger(0).n_sealed(); }  // pages
  // Returns how many pages were sealed at the checkpoint, or -1 without a checkpoint.
  int checkpoint_pages() const { return checkpoint_pages_; }
  // Returns whether a correction has summed up sealed pages, which it cannot forget one by one.
  virtual bool sums_up() const = 0;

  // --- a step: begin, reserve, what attention does, then commit or abort ---
  // Marks the state that abort() returns to, whether the step has reserved or not.
  void begin();
  // Takes memory for n_tokens more tokens. Returns false or throws std::bad_alloc if memory is exhausted. The
  // caller must then call abort().
  bool reserve(int n_tokens, bool is_prompt);
  void commit();
  void abort();

  // --- between steps ---
  // Makes this empty sequence a copy of `from` that shares pages where possible. Returns false or throws
  // std::bad_alloc if memory is exhausted. The caller must then drop this sequence.
  bool copy_from(const SequencePages& from);
  // Keeps the first n_tokens tokens, after the cache has found the cut possible. Returns false or throws
  // std::bad_alloc if memory is exhausted, and returns an error if the device has failed. The caller must
  // then drop this sequence.
  Result<bool> truncate(int n_tokens);
  // Remembers the correction's sums for truncate(). The call may throw std::bad_alloc, and then leaves no
  // checkpoint.
  void checkpoint();

  // --- bytes, between steps ---
  CacheBytes bytes() const;
  // Subtracts what is in `counted` from `bytes`, which are this sequence's bytes. Adds what this sequence
  // shares to `counted`.
  void leave_out_shared(std::set<HeldPage::Name>& counted, CacheBytes& bytes) const;
  using Visit = std::function<void(const HeldPage&)>;
  virtual void for_each_page(const Visit& visit) const = 0;
  // Adds the bytes of pages to k and v, which are indexed by Geometry::head_index.
  virtual void add_side_bytes(std::vector<std::int64_t>& k, std::vector<std::int64_t>& v) const = 0;
  // Returns the protected tokens of a head in pages that were sealed before the step, in ascending order.
  virtual std::vector<int> protected_tokens(int layer, int kv_head) const = 0;
  // Lists the pages of a head that hold tokens from first_visible on, in host memory. The caller may list
  // them between steps, or in a step after the layer has attended. The list is valid until the sequence
  // changes. An error says that the device has failed.
  virtual Result<ListedPages> list_pages(int layer, int kv_head, int first_visible) const = 0;

  // --- images (sequence_image.cc has the order of their parts) ---
  // Returns how many pages of a group an image has sealed. The number comes from the ledger, or from a cache
  // that seals.
  virtual int image_sealed(int group) const { return ledger(group).n_sealed(); }
  // Takes entries with undefined contents for all pages of an image. Returns the errors of copy_from().
  bool take_pages(int group, int length, int n_sealed, int first_page);
  void set_checkpoint_pages(int n) { checkpoint_pages_ = n; }
  // Calls `see` with what the sequence holds besides its entries, head by head in the order of
  // Geometry::head_index. An error says that the device has failed, or what an image cannot represent.
  using SeeHead = std::function<void(int layer, int kv_head, const HeadImage&)>;
  virtual Status save_heads(const SeeHead& see) const = 0;
  // Takes the image of each head from next(layer, kv_head), which reads it. The reader refuses impossible
  // data. n_sealed counts the sealed pages of the image's first group. Returns false or throws std::bad_alloc
  // if memory is exhausted.
  using NextHead = std::function<HeadImage(int layer, int kv_head)>;
  virtual bool load_heads(ByteReader& from, int n_sealed, const NextHead& next) = 0;
  // Writes and reads a page of a group: its sealed entry in the canonical order, or its rows of the tail.
  // Returns the errors of save_heads() and load_heads().
  virtual Status save_page(ByteWriter& to, int group, int page) const = 0;
  virtual bool load_page(ByteReader& from, int group, int page) = 0;

 protected:
  const PageGroup& group(int index) const { return groups_[index]; }
  PageLedger& mutable_ledger(int group) { return *ledgers_[group]; }
  // Returns how many tokens a page has; only the open page has fewer than kPageTokens.
  int rows_of(int group, int page) const;

 private:
  // These functions move what a sequence holds besides its entries. Like the public functions, they report
  // short memory.
  virtual void begin_beside() {}
  virtual bool reserve_beside() = 0;  // The ledgers go first.
  virtual void commit_beside() = 0;   // The ledgers go first.
  virtual void abort_beside() = 0;    // The ledgers follow.
  virtual bool copy_beside(const SequencePages& from) = 0;
  // Writes the first n_tokens % kPageTokens rows of a sealed page into an entry of the tail.
  virtual Status reopen(int group, int n_tokens, PageEntry sealed, PageEntry tail) = 0;
  // The ledgers have been cut before. If `forgets`, sealed pages are gone, and a correction returns to its
  // checkpoint.
  virtual bool truncate_beside(int n_tokens, bool forgets) = 0;
  virtual void checkpoint_beside() = 0;
  // Adds the bytes of lists, scores and sums, and divides the bytes of protected pages between sink and other
  // tokens.
  virtual void add_bytes_beside(CacheBytes& bytes) const = 0;

  const std::vector<PageGroup>& groups_;
  std::vector<std::unique_ptr<PageLedger>> ledgers_;  // [n_groups]
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
  // Writes plausible pages instead of attention (synthetic_sequence.h).
  virtual std::unique_ptr<SyntheticPages> synthetic_pages(std::uint64_t seed) = 0;

 protected:
  // Allocations beyond byte_limit fail; 0 means no limit. The plan outlives the store, and so does the device
  // that keeps states. Host memory keeps states if the device is null.
  SequenceStore(const Plan& plan, std::int64_t byte_limit, PageDevice* keeps_states);
  MemoryBudget& mutable_budget() { return budget_; }
  // Groups come in the order of their first layers. `entries` is this store's.
  void add_group(const GroupRules& rules, const std::vector<int>& layers, EntryStore& entries);

  const Plan& plan_;

 private:
  // Gives back memory that no page needs, and returns whether there was any.
  virtual bool shrink() noexcept { return false; }

  MemoryBudget budget_;
  RecurrentStates states_;
  std::vector<PageGroup> groups_;
  std::vector<int> group_of_layer_;  // [n_layers]
};

}  // namespace kvant
