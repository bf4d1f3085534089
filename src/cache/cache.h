// Cache: the low-bit KV cache of many sequences over one plan (design section 6).
//
// Each (sequence, layer, KV head) holds, in this order of tokens: sealed pages in the plan's formats, and
// unsealed pages (the tail) in the plan's tail format. Protected tokens (the sink) live in side pages of the
// tail format and are masked out of their sealed page. Stored K and V are transformed.
//
// A step is a transaction: reserve() allocates all that the step may need; while it runs, append, attend
// and seal write uncommitted storage; commit() publishes, abort() (or dropping the Step) leaves every
// sequence as it was.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "cache/head_state.h"
#include "cache/page_pool.h"
#include "recipe/plan.h"

namespace kvant {

using SequenceId = std::int32_t;

// n_tokens new tokens at the end of one sequence. Tokens of a prompt see each other in blocks of the
// recipe's `prefill`; answers (one or more tokens) in blocks of one page.
struct StepSlice {
  SequenceId sequence = 0;
  int n_tokens = 0;
  bool is_prompt = false;
};

// Bytes in use. The figures of a table: bits = 8 * bytes / elements.
struct CacheBytes {
  std::int64_t sealed = 0;     // pages in their formats
  std::int64_t protected_tokens = 0;  // side pages (whole), masks and token lists: sink included
  std::int64_t sink = 0;       // the part of protected_tokens that is sink rows
  std::int64_t tail = 0;       // unsealed pages (whole)
  std::int64_t tokens_sealed = 0;  // sum over (layer, KV head) of sealed tokens held
  std::int64_t tokens_held = 0;    // sum over (layer, KV head) of all tokens held
  std::int64_t all() const { return sealed + protected_tokens + tail; }
};

class Cache;

// A step between reserve and commit. Rows of the batch are the slices' tokens, in slice order.
class Step {
 public:
  Step(Step&& other) noexcept;
  Step& operator=(Step&&) = delete;
  ~Step();  // aborts unless committed

  std::span<const StepSlice> slices() const { return slices_; }
  int n_rows() const { return n_rows_; }
  // Absolute index of the first token of slice i.
  int first_token(int slice) const { return first_tokens_[slice]; }
  Cache& cache() const { return *cache_; }

  // Remembers the first error of the threads that run the step. Thread-safe.
  void fail(Error failure);
  bool failed() const { return failed_.load(std::memory_order_acquire); }

  // Publishes the step. After fail(), or when a layer has not been run, aborts and returns the error.
  Status commit();
  // Leaves every sequence as it was before reserve().
  void abort();

 private:
  friend class Cache;
  Step(Cache& cache, std::vector<StepSlice> slices);

  Cache* cache_;
  std::vector<StepSlice> slices_;
  std::vector<int> first_tokens_;
  int n_rows_ = 0;
  std::atomic<bool> failed_{false};
  std::mutex failure_mutex_;
  std::optional<Error> failure_;
};

class Cache {
 public:
  // byte_limit: allocations beyond it fail with an error ("out of memory"); 0: no limit.
  Cache(std::shared_ptr<const Plan> plan, std::int64_t byte_limit);
  ~Cache();

  const Plan& plan() const { return *plan_; }

  SequenceId add();                           // an empty sequence
  Result<SequenceId> fork(SequenceId from);   // shares sealed pages, copies the tail
  // Keeps the first n_tokens. A cut inside a sealed page decodes that page back into the tail: its rounding stays.
  // An error leaves the sequence as it was: a sliding window's pages are gone, out of memory.
  Status truncate(SequenceId sequence, int n_tokens);
  void free(SequenceId sequence);
  int length(SequenceId sequence) const;      // tokens committed

  Result<std::unique_ptr<Step>> reserve(std::vector<StepSlice> slices);

  // Ends a prompt: from the next token on the answer's blocks hold (pages that are due are sealed at once).
  Status end_prompt(SequenceId sequence);

  CacheBytes bytes(SequenceId sequence) const;  // of one sequence; shared pages count fully
  CacheBytes bytes() const;                     // of all; shared pages count once
  std::int64_t bytes_reserved() const;          // from the operating system, free pages included

  // Benchmarks only: makes the sequence n_tokens long with plausible random contents, fast.
  Status fill_synthetic(SequenceId sequence, int n_tokens, std::uint64_t seed);
};
}  // namespace kvant
