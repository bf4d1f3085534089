// Cache is the low-bit KV cache of many sequences over one plan.
//
// Each (sequence, layer, KV head) holds sealed pages in the plan's formats, and then unsealed pages (the
// tail) in the plan's tail format. Protected tokens, including the sink, lie in pages of their own in the
// tail format and are masked out of their sealed page. Stored K and V are transformed.
//
// A layer without attention has a state instead of pages (recurrent_states.h), which the model reads and
// writes. The cache keeps the state through forks, checkpoints and images.
//
// A step is a transaction. reserve() allocates all that the step may need. During the step, append, attend
// and seal write only uncommitted storage. commit() publishes the step, and abort() (or dropping the Step)
// leaves every sequence unchanged.
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

// Describes n_tokens new tokens at the end of one sequence. The tokens of a prompt attend in blocks of the
// recipe's `prefill` tokens, and decoded tokens in blocks of one page.
struct StepSlice {
  SequenceId sequence = 0;
  int n_tokens = 0;
  bool is_prompt = false;
};

class Cache;

// Is a step between reserve and commit. The rows of the batch are the tokens of the slices, in the order of
// the slices.
class Step {
 public:
  ~Step();  // The destructor aborts a step that is not committed.
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  std::span<const StepSlice> slices() const { return slices_; }
  int n_rows() const { return n_rows_; }
  // Return the absolute index of the first token of a slice, and the batch row of this token.
  int first_token(int slice) const { return first_tokens_[slice]; }
  int first_row(int slice) const { return first_rows_[slice]; }
  const Plan& plan() const;
  const std::shared_ptr<const Plan>& shared_plan() const;
  const PlacedPlan& placed() const;
  // Return the pages of a slice, and the memory that holds them. Code that attends knows which kind of pages
  // they are (head_of, device_sequence).
  SequencePages& pages(int slice) const;
  SequenceStore& store() const;
  // Returns the ledger of the layer's group. On a device, all groups that seal have an equal number of sealed
  // pages.
  const PageLedger& ledger(int slice, int layer) const;

  // Return a slice's state of layers without attention, Geometry::recurrent_values numbers in the memory of
  // the pages. state_before() is the state before the step, and null stands for zeros. The model writes the
  // new state to state_after(). The model must have such layers.
  const float* state_before(int slice) const;
  float* state_after(int slice) const;
  // Return the states as shared pointers, which keep the values unchanged. A caller that has copied a
  // committed state can compare pointers to see whether the copy is still valid.
  RecurrentState held_state_before(int slice) const;
  RecurrentState held_state_after(int slice) const;

  // Returns whether the previous caller was not `attention`. If so, `attention` must prepare for this step.
  bool is_new_to(const void* attention) { return std::exchange(attention_, attention) != attention; }

  // Remembers the first error of the threads that run the step. The function is thread-safe.
  void fail(Error failure);
  // Remembers that memory is short, without allocating. The function is thread-safe.
  void fail_out_of_memory() noexcept;
  bool failed() const { return failed_.load(std::memory_order_acquire); }

  // Publishes the step. After fail(), the call aborts and returns the error.
  Status commit();
  // Returns every sequence to its state before reserve().
  void abort();

 private:
  friend class Cache;
  Step(Cache& cache, std::vector<StepSlice> slices);

  Cache& cache_;
  std::vector<StepSlice> slices_;
  std::vector<int> first_tokens_, first_rows_;
  int n_rows_ = 0;
  bool open_ = true;
  const void* attention_ = nullptr;  // The backend that has prepared for this step.
  std::atomic<bool> failed_{false};
  std::mutex failure_mutex_;
  Error failure_;
  bool out_of_memory_ = false;  // The failure is short memory. commit() makes the sentence later.
};

// A function returns an error for an unknown sequence or an impossible step. A function without an error
// result says what it does instead.
class Cache {
 public:
  // Allocations beyond byte_limit fail with an error. 0 means no limit.
  Cache(PlacedPlan plan, std::int64_t byte_limit);
  ~Cache();

  const Plan& plan() const { return *plan_; }
  const PlacedPlan& placed() const { return plan_; }

  SequenceId add();                          // Adds an empty sequence.
  Result<SequenceId> fork(SequenceId from);  // The fork shares all pages. The first of the two that continues
                                             // copies the open page.
  // Keeps the first n_tokens tokens. A cut inside a sealed page decodes this page back into the tail and
  // keeps its rounding; pages sealed within the window stay sealed. If a correction must forget pages,
  // truncation restores the sums of the checkpoint. The sums are exact unless a later page stays sealed,
  // which then has no correction. An error leaves the sequence unchanged. Causes are too few tokens, freed
  // pages of a sliding window, a sealed page with evictions, and exhausted memory. Other causes are a
  // correction over later pages without an earlier checkpoint, and a recurrent state of a different length.
  Status truncate(SequenceId sequence, int n_tokens);
  // Remembers the correction of the sealed pages and the recurrent state for truncate(), and replaces the
  // earlier checkpoint. The checkpoint takes the bytes of both once the sequence continues. A sequence
  // without a correction and a state needs no checkpoint.
  Status checkpoint(SequenceId sequence);
  void free(SequenceId sequence);  // Does nothing for an unknown sequence. No step may be open.
  bool holds(SequenceId sequence) const { return sequences_.contains(sequence); }
  int length(SequenceId sequence) const;  // committed tokens; 0 for an unknown sequence

  // Returns everything that a sequence holds, as bytes for import_sequence(). The bytes do not depend on the
  // plan's page order. The bytes do not name model, recipe and constants, so the caller must check all three.
  Result<std::vector<std::byte>> export_sequence(SequenceId sequence) const;
  // Returns a sequence that continues exactly as the exported one would. Returns an error if no cache of this
  // plan has exported the bytes, if a step is open, or if memory is exhausted. cache/sequence_image.h imports
  // piece by piece.
  Result<SequenceId> import_sequence(std::span<const std::byte> bytes);

  // Opens a step. At most one step may be open, and a sequence may occur once in a step. An error (exhausted
  // memory or an impossible step) leaves every sequence unchanged.
  Result<std::unique_ptr<Step>> reserve(std::vector<StepSlice> slices);

  // Return the bytes of one sequence, where shared pages count fully, and of all sequences, where shared
  // pages count once. An unknown sequence has no bytes.
  CacheBytes bytes(SequenceId sequence) const;
  CacheBytes bytes() const;
  std::int64_t bytes_reserved() const { return store_->budget().taken(); }  // bytes from the operating system
  // Returns the bytes of all pages and recurrent states. Shared pages and states count once. Unlike bytes(),
  // the result lacks lists and scores, and in host memory also corrections and observers. Counting takes no
  // time.
  std::int64_t page_bytes_in_use() const {
    return store_->states().bytes_in_use() + store_->page_bytes_in_use();
  }

  std::vector<SequenceId> sequences() const;  // All sequences in ascending order.

  // Return the pages and a ledger of a known sequence, between steps.
  const SequencePages& pages(SequenceId sequence) const { return *sequences_.at(sequence).pages; }
  const PageLedger& ledger(SequenceId sequence, int group) const { return pages(sequence).ledger(group); }

 private:
  friend class Step;
  friend class SequenceExport;
  friend class SequenceImport;
  friend Status fill_synthetic(Cache& cache, SequenceId sequence, int n_tokens, std::uint64_t seed);
  struct Sequence {
    std::unique_ptr<SequencePages> pages;
    RecurrentState state;  // The state of layers without attention.
    RecurrentState checkpoint_state;
    int checkpoint_tokens = 0;          // tokens that checkpoint_state has seen; 0 without a checkpoint
    std::shared_ptr<float> next_state;  // The state that the open step writes.
    int length() const { return pages->length(); }
  };
  struct Shared {
    std::map<HeldPage::Name, std::int64_t> pages;  // the bytes that are counted
    std::set<RecurrentState> states;
  };

  Error out_of_memory(const char* doing) const;
  void leave_out_shared(const Sequence& sequence, Shared& counted, CacheBytes& bytes) const;
  // Returns an error if the caller may not touch the sequence now. `doing` names the action, for example
  // "fork".
  Status check_idle(SequenceId sequence, const char* doing) const;
  Status check_slices(const std::vector<StepSlice>& slices) const;
  Status check_truncation(const Sequence& sequence, int n_tokens) const;
  Status cut(SequencePages& pages, int n_tokens) const;
  bool reserve_slice(const StepSlice& slice);
  bool fill(Sequence& to, int n_tokens, std::uint64_t seed);  // for fill_synthetic()
  static std::set<RecurrentState> states_of(const Sequence& sequence);
  void close(Step& step, bool commit);

  PlacedPlan plan_;
  std::unique_ptr<SequenceStore> store_;
  std::size_t widest_step_ = 0;  // sequences of the widest step
  std::map<SequenceId, Sequence> sequences_;
  SequenceId next_id_ = 0;
  bool step_open_ = false;
};

}  // namespace kvant
