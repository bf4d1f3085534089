// Cache: the low-bit KV cache of many sequences over one plan (design section 6).
//
// Each (sequence, layer, KV head) holds, in this order of tokens: sealed pages in the plan's formats, and
// unsealed pages (the tail) in the plan's tail format. Protected tokens (the sink) live in protected pages of
// the tail format and are masked out of their sealed page. Stored K and V are transformed.
//
// Layers without attention keep a state instead (recurrent_states.h), which the model reads and writes: the
// cache keeps it beside the sequence's pages, through forks, checkpoints and images.
//
// A step is a transaction: reserve() allocates all that the step may need; while it runs, append, attend
// and seal write uncommitted storage; commit() publishes, abort() (or dropping the Step) leaves every
// sequence as it was.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "cache/cache_bytes.h"
#include "cache/placed_plan.h"
#include "cache/recurrent_states.h"
#include "cache/sequence_pages.h"
#include "recipe/plan.h"

namespace kvant {

using SequenceId = std::int32_t;

// n_tokens new tokens at the end of one sequence. Tokens of a prompt see each other in blocks of the
// recipe's `prefill`; decode steps (one or more tokens) in blocks of one page.
struct StepSlice {
  SequenceId sequence = 0;
  int n_tokens = 0;
  bool is_prompt = false;
};

class Cache;

// A step between reserve and commit. Rows of the batch are the slices' tokens, in slice order.
class Step {
 public:
  ~Step();  // aborts unless committed
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  std::span<const StepSlice> slices() const { return slices_; }
  int n_rows() const { return n_rows_; }
  // Absolute index of the first token of slice i; the batch row of that token.
  int first_token(int slice) const { return first_tokens_[slice]; }
  int first_row(int slice) const { return first_rows_[slice]; }
  const Plan& plan() const;
  const std::shared_ptr<const Plan>& shared_plan() const;
  const PlacedPlan& placed() const;
  // What slice i holds of pages, and in which memory. Whoever attends there knows of which kind they are
  // (head_of, device_sequence).
  SequencePages& pages(int slice) const;
  SequenceStore& store() const;
  // Returns the ledger of the layer's group. All groups that seal on a device have as many pages sealed.
  const PageLedger& ledger(int slice, int layer) const;

  // States of layers without attention, Geometry::recurrent_values each: what slice i has, null: zeros; and
  // where what it has after the step is to be written: in the memory that pages lie in. Requires that the
  // model has such layers.
  const float* state_before(int slice) const;
  float* state_after(int slice) const;
  // The same, with what keeps their values as they are: whoever has copied a committed state can tell by it
  // whether his copy still holds.
  RecurrentState held_state_before(int slice) const;
  RecurrentState held_state_after(int slice) const;

  // Whether `attention` asks for the first time in a row: it then has to prepare for this step.
  bool is_new_to(const void* attention) { return std::exchange(attention_, attention) != attention; }

  // Remembers the first error of the threads that run the step. Thread-safe.
  void fail(Error failure);
  // The same where memory is short, without taking any. Thread-safe.
  void fail_out_of_memory() noexcept;
  bool failed() const { return failed_.load(std::memory_order_acquire); }

  // Publishes the step. After fail(), aborts and returns the error.
  Status commit();
  // Leaves every sequence as it was before reserve().
  void abort();

 private:
  friend class Cache;
  Step(Cache& cache, std::vector<StepSlice> slices);

  Cache& cache_;
  std::vector<StepSlice> slices_;
  std::vector<int> first_tokens_, first_rows_;
  int n_rows_ = 0;
  bool open_ = true;
  const void* attention_ = nullptr;  // that has prepared for it
  std::atomic<bool> failed_{false};
  std::mutex failure_mutex_;
  Error failure_;
  bool out_of_memory_ = false;  // is the failure, whose sentence is made later
};

// What names a sequence that the cache doesn't hold, or a step that can't be, gets an error; what returns
// none says what it does then.
class Cache {
 public:
  // byte_limit: allocations beyond it fail with an error; 0: no limit.
  Cache(PlacedPlan plan, std::int64_t byte_limit);
  ~Cache();

  const Plan& plan() const { return *plan_; }
  const PlacedPlan& placed() const { return plan_; }

  SequenceId add();                          // an empty sequence
  Result<SequenceId> fork(SequenceId from);  // shares all pages; who goes on first copies the open one
  // Keeps the first n_tokens. A cut inside a sealed page decodes that page back into the tail: its rounding
  // stays, and so do pages sealed within the window. A cut that a correction has to forget pages for restores
  // that of the checkpoint: exact where no later page stays sealed, else those have none. An error (more
  // tokens than there are, pages that a sliding window freed, a sealed page with evictions, a correction that
  // has summed up pages behind the cut without a checkpoint before it, a recurrent state of another length
  // than the sequence's or the checkpoint's, out of memory) leaves the sequence as it was.
  Status truncate(SequenceId sequence, int n_tokens);
  // Remembers the correction of the sealed pages and the recurrent state, for truncate() to return to;
  // replaces the checkpoint before. It takes as many bytes as these, once the sequence goes on. An error: out
  // of memory. Without either it does nothing.
  Status checkpoint(SequenceId sequence);
  void free(SequenceId sequence);  // nothing, if it isn't held; not while a step is open
  bool holds(SequenceId sequence) const { return sequences_.contains(sequence); }
  int length(SequenceId sequence) const;  // tokens committed; 0 if it isn't held

  // All that a sequence holds, as bytes that are the same whatever the plan's page order: what
  // import_sequence() makes a sequence of. They say nothing of model, recipe and constants, which the caller
  // has to tell apart.
  Result<std::vector<std::byte>> export_sequence(SequenceId sequence) const;
  // A sequence that goes on exactly as the exported one would. An error: bytes that no cache of this plan has
  // exported, a step is open, out of memory. Piece by piece: cache/sequence_image.h.
  Result<SequenceId> import_sequence(std::span<const std::byte> bytes);

  // Opens a step: at most one at a time, and each sequence at most once in it. On an error (out of memory, or
  // a step that can't be) every sequence is as it was.
  Result<std::unique_ptr<Step>> reserve(std::vector<StepSlice> slices);

  CacheBytes bytes(SequenceId sequence) const;  // of one sequence (none: if it isn't held); shared pages
                                                // count fully
  CacheBytes bytes() const;                     // of all sequences; shared pages count once
  std::int64_t bytes_reserved() const { return store_->budget().taken(); }  // from the operating system
  // Of all pages and recurrent states, shared ones once: bytes() without lists, scores and corrections, but
  // counted at once.
  std::int64_t page_bytes_in_use() const {
    return store_->states().bytes_in_use() + store_->page_bytes_in_use();
  }

  std::vector<SequenceId> sequences() const;  // that are held, ascending

  // What a sequence that is held holds of pages, between steps.
  const SequencePages& pages(SequenceId sequence) const { return *sequences_.at(sequence).pages; }
  const PageLedger& ledger(SequenceId sequence, int group) const { return pages(sequence).ledger(group); }

 private:
  friend class Step;
  friend class SequenceExport;
  friend class SequenceImport;
  struct Sequence {
    std::unique_ptr<SequencePages> pages;
    RecurrentState state;  // of layers without attention
    RecurrentState checkpoint_state;
    int checkpoint_tokens = 0;          // that it has seen; 0: there is none
    std::shared_ptr<float> next_state;  // of the step that is open
    int length() const { return pages->length(); }
  };
  struct Shared {
    std::set<HeldPage::Name> pages;
    std::set<RecurrentState> states;
  };

  Error out_of_memory(const char* doing) const;
  void leave_out_shared(const Sequence& sequence, Shared& counted, CacheBytes& bytes) const;
  // An error where the caller may not touch the sequence now. doing: "fork".
  Status check_idle(SequenceId sequence, const char* doing) const;
  Status check_slices(const std::vector<StepSlice>& slices) const;
  Status check_truncation(const Sequence& sequence, int n_tokens) const;
  Status cut(SequencePages& pages, int n_tokens) const;
  bool reserve_slice(const StepSlice& slice);
  static std::set<RecurrentState> states_of(const Sequence& sequence);
  void close(Step& step, bool commit);

  PlacedPlan plan_;
  std::unique_ptr<SequenceStore> store_;
  std::size_t widest_step_ = 0;  // sequences
  std::map<SequenceId, Sequence> sequences_;
  SequenceId next_id_ = 0;
  bool step_open_ = false;
};

}  // namespace kvant
