#include "cache/cache.h"

#include <algorithm>
#include <new>
#include <set>
#include <utility>

#include "base/check.h"
#include "cache/device_layout.h"
#include "cache/page_counts.h"

namespace kvant {

Step::Step(Cache& cache, std::vector<StepSlice> slices) : cache_(cache), slices_(std::move(slices)) {
  for (const StepSlice& slice : slices_) {
    first_tokens_.push_back(cache_.length(slice.sequence));
    first_rows_.push_back(n_rows_);
    n_rows_ += slice.n_tokens;
  }
}

Step::~Step() {
  if (open_) abort();
}

const Plan& Step::plan() const {
  return *cache_.plan_;
}

RecurrentState Step::held_state_before(int slice) const {
  return cache_.sequences_.at(slices_[slice].sequence).state;
}

RecurrentState Step::held_state_after(int slice) const {
  return cache_.sequences_.at(slices_[slice].sequence).next_state;
}

const float* Step::state_before(int slice) const {
  return held_state_before(slice).get();
}

float* Step::state_after(int slice) const {
  return cache_.sequences_.at(slices_[slice].sequence).next_state.get();
}

const std::shared_ptr<const Plan>& Step::shared_plan() const {
  return cache_.plan_.plan();
}

const PlacedPlan& Step::placed() const {
  return cache_.plan_;
}

SequencePages& Step::pages(int slice) const {
  return *cache_.sequences_.at(slices_[slice].sequence).pages;
}

SequenceStore& Step::store() const {
  return *cache_.store_;
}

const PageLedger& Step::ledger(int slice, int layer) const {
  return pages(slice).ledger(cache_.store_->group_of(layer));
}

void Step::fail(Error failure) {
  const std::lock_guard<std::mutex> lock(failure_mutex_);
  if (failed_) return;
  failure_ = std::move(failure);
  failed_.store(true, std::memory_order_release);
}

void Step::fail_out_of_memory() noexcept {
  const std::lock_guard<std::mutex> lock(failure_mutex_);
  if (failed_) return;
  out_of_memory_ = true;
  failed_.store(true, std::memory_order_release);
}

Status Step::commit() {
  KVANT_CHECK(open_, "commit of a closed step");
  open_ = false;
  cache_.close(*this, !failed());
  if (out_of_memory_) return cache_.out_of_memory("attending");
  if (failed()) return failure_;
  return {};
}

void Step::abort() {
  KVANT_CHECK(open_, "abort of a closed step");
  open_ = false;
  cache_.close(*this, false);
}

Cache::Cache(PlacedPlan plan, std::int64_t byte_limit)
    : plan_(std::move(plan)), store_(plan_.make_store(byte_limit)) {}

Cache::~Cache() {
  KVANT_CHECK(!step_open_, "cache destroyed with an open step");
}

Error Cache::out_of_memory(const char* doing) const {
  return shortage(
      "out of memory while {}: the KV cache holds {:.1f} MiB{}; use fewer tokens or a recipe with fewer bits",
      doing, static_cast<double>(store_->budget().taken()) / (1 << 20),
      store_->budget().limit() > 0
          ? fmt::format(" of {:.1f} MiB", static_cast<double>(store_->budget().limit()) / (1 << 20))
          : "");
}

Status Cache::check_idle(SequenceId sequence, const char* doing) const {
  if (!holds(sequence))
    return error("cannot {} sequence {}: the cache holds none of that number", doing, sequence);
  if (step_open_)
    return error("cannot {} sequence {} while a step is open: commit or abort it first", doing, sequence);
  return {};
}

SequenceId Cache::add() {
  sequences_.emplace(next_id_, Sequence{store_->make_sequence()});
  return next_id_++;
}

Result<SequenceId> Cache::fork(SequenceId from) {
  KVANT_RETURN_IF_ERROR(check_idle(from, "fork"));
  try {
    const Sequence& source = sequences_.at(from);
    Sequence copy{store_->make_sequence(), source.state, source.checkpoint_state, source.checkpoint_tokens};
    copy.pages->copy_from(*source.pages);
    sequences_.emplace(next_id_, std::move(copy));
    return next_id_++;
  } catch (const std::bad_alloc&) {
    return out_of_memory("forking a sequence");
  }
}

Status Cache::check_truncation(const Sequence& s, int n_tokens) const {
  if (n_tokens < 0 || n_tokens > s.length())
    return error("cannot truncate to {} tokens: the sequence has {}", n_tokens, s.length());
  const int sealed_tokens = s.pages->n_sealed() * kPageTokens, checkpoint = s.pages->checkpoint_pages();
  const bool has_checkpoint = checkpoint >= 0 && checkpoint * kPageTokens <= n_tokens;
  if (n_tokens > 0 && n_tokens < sealed_tokens && !has_checkpoint && is_corrected(*plan_)) {
    return error(
        "cannot truncate to {} tokens: the correction of {} sums over the first {} and can't remove some of "
        "them; keep those, or none, or make a checkpoint or a fork before the sequence continues",
        n_tokens, label(plan_->recipe), sealed_tokens);
  }
  const Geometry& g = plan_->geometry;
  const bool has_state = n_tokens == 0 || n_tokens == s.length() || n_tokens == s.checkpoint_tokens;
  if (g.is_recurrent() && !has_state) {
    return error(
        "cannot truncate to {} tokens: {} has layers without attention, whose state is known after {} "
        "tokens{} alone; cut there, or make a checkpoint or a fork before the sequence continues",
        n_tokens, g.model, s.length(),
        s.checkpoint_tokens > 0 ? fmt::format(" and after {}", s.checkpoint_tokens) : "");
  }
  for (int layer = 0; layer < g.n_layers; ++layer) {
    if (plan_->layers[layer].evict > 0 && n_tokens % kPageTokens != 0 && n_tokens < sealed_tokens) {
      return error(
          "cannot truncate to {} tokens: {} has evicted some of the first {} for good; cut at a multiple of "
          "{}, keep those, or fork before it continues",
          n_tokens, label(plan_->recipe), sealed_tokens, kPageTokens);
    }
    const int first_needed = first_visible_token(n_tokens, g.sliding_window[layer]);
    const int first_held = s.pages->ledger(store_->group_of(layer)).first_page() * kPageTokens;
    if (n_tokens > 0 && first_needed < first_held) {
      return error("cannot truncate to {} tokens: layer {} slides over {} tokens and holds those from {} on",
                   n_tokens, layer, g.sliding_window[layer], first_held);
    }
  }
  return {};
}

Status Cache::cut(SequencePages& pages, int n_tokens) const {
  try {
    const Result<bool> cut = pages.truncate(n_tokens);
    if (!cut.ok()) return cut.error();
    if (*cut) return {};
  } catch (const std::bad_alloc&) {
    // The error is returned below.
  }
  return out_of_memory("truncating a sequence");
}

// The function cuts a fork, which then replaces the sequence. So a failure halfway leaves the sequence
// unchanged.
Status Cache::truncate(SequenceId sequence, int n_tokens) {
  KVANT_RETURN_IF_ERROR(check_idle(sequence, "truncate"));
  Sequence& s = sequences_.at(sequence);
  KVANT_RETURN_IF_ERROR(check_truncation(s, n_tokens));
  Result<SequenceId> shorter = fork(sequence);
  if (!shorter.ok()) return shorter.error();
  SequencePages& copy = *sequences_.at(*shorter).pages;
  Status done = cut(copy, n_tokens);
  if (done.ok()) {
    std::swap(s.pages, sequences_.at(*shorter).pages);
    if (n_tokens == s.checkpoint_tokens && n_tokens > 0) s.state = s.checkpoint_state;
    if (n_tokens == 0) {
      s.checkpoint_tokens = 0;
      s.state = s.checkpoint_state = nullptr;
    }
  }
  free(*shorter);
  return done;
}

Status Cache::checkpoint(SequenceId sequence) {
  KVANT_RETURN_IF_ERROR(check_idle(sequence, "checkpoint"));
  Sequence& s = sequences_.at(sequence);
  s.pages->checkpoint();
  s.checkpoint_state = s.state;
  s.checkpoint_tokens = plan_->geometry.is_recurrent() ? s.length() : 0;
  return {};
}

void Cache::free(SequenceId sequence) {
  KVANT_CHECK(!step_open_, "free within a step");
  sequences_.erase(sequence);
}

int Cache::length(SequenceId sequence) const {
  const auto found = sequences_.find(sequence);
  return found == sequences_.end() ? 0 : found->second.length();
}

std::vector<SequenceId> Cache::sequences() const {
  std::vector<SequenceId> ids;
  for (const auto& [id, sequence] : sequences_) ids.push_back(id);
  return ids;
}

bool Cache::reserve_slice(const StepSlice& slice) {
  Sequence& s = sequences_.at(slice.sequence);
  if (plan_->geometry.is_recurrent()) {
    s.next_state = store_->take_state();
    if (s.next_state == nullptr) return false;
  }
  return s.pages->reserve(slice.n_tokens, slice.is_prompt);
}

Status Cache::check_slices(const std::vector<StepSlice>& slices) const {
  if (step_open_) return error("cannot open a step while another is open: commit or abort it first");
  std::set<SequenceId> seen;
  for (const StepSlice& slice : slices) {
    KVANT_RETURN_IF_ERROR(check_idle(slice.sequence, "extend"));
    if (slice.n_tokens <= 0) {
      return error("cannot extend sequence {} by {} tokens: a step adds one at least", slice.sequence,
                   slice.n_tokens);
    }
    if (!seen.insert(slice.sequence).second)
      return error("cannot extend sequence {} twice in a step: put its tokens into one slice",
                   slice.sequence);
  }
  return {};
}

Result<std::unique_ptr<Step>> Cache::reserve(std::vector<StepSlice> slices) {
  std::unique_ptr<Step> step;
  bool enough = true;
  try {
    KVANT_RETURN_IF_ERROR(check_slices(slices));
    step.reset(new Step(*this, std::move(slices)));
    step_open_ = true;
    widest_step_ = std::max(widest_step_, step->slices_.size());
    if (plan_->geometry.is_recurrent()) store_->states().keep_spares(widest_step_);
    // All sequences get their marks first, because an abort returns every sequence to its marks, reserved or
    // not.
    for (const StepSlice& slice : step->slices_) sequences_.at(slice.sequence).pages->begin();
    for (const StepSlice& slice : step->slices_) enough = enough && reserve_slice(slice);
  } catch (const std::bad_alloc&) {
    enough = false;
  }
  if (enough) return step;
  if (step != nullptr && step_open_) step->abort();
  return out_of_memory("reserving room for new tokens");
}

void Cache::close(Step& step, bool commit) {
  step_open_ = false;
  for (const StepSlice& slice : step.slices_) {
    Sequence& s = sequences_.at(slice.sequence);
    if (commit) {
      s.pages->commit();
      if (s.next_state != nullptr) s.state = s.next_state;
    } else {
      s.pages->abort();
    }
    s.next_state.reset();
  }
}

CacheBytes Cache::bytes(SequenceId sequence) const {
  if (!holds(sequence)) return {};
  const Sequence& s = sequences_.at(sequence);
  CacheBytes total = s.pages->bytes();
  total.recurrent = store_->states().state_bytes() * static_cast<std::int64_t>(states_of(s).size());
  return total;
}

std::set<RecurrentState> Cache::states_of(const Sequence& sequence) {
  std::set<RecurrentState> states{sequence.state, sequence.checkpoint_state};
  states.erase(nullptr);
  return states;
}

// Subtracts what other sequences have counted from a sequence's bytes, and remembers what the sequence
// shares.
void Cache::leave_out_shared(const Sequence& sequence, Shared& counted, CacheBytes& bytes) const {
  for (const RecurrentState& state : states_of(sequence)) {
    if (!counted.states.insert(state).second) bytes.recurrent -= store_->states().state_bytes();
  }
  sequence.pages->leave_out_shared(counted.pages, bytes);
}

CacheBytes Cache::bytes() const {
  CacheBytes total;
  Shared counted;
  for (const auto& [id, sequence] : sequences_) {
    CacheBytes b = bytes(id);
    leave_out_shared(sequence, counted, b);
    total += b;
  }
  return total;
}

}  // namespace kvant
