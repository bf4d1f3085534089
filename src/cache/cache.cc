#include "cache/cache.h"

#include <algorithm>
#include <new>
#include <set>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "cache/layer_groups.h"
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

HeadState& Step::head(int slice, int layer, int kv_head) const {
  return cache_.mutable_head(slices_[slice].sequence, layer, kv_head);
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
    : plan_(std::move(plan)),
      pools_(byte_limit),
      states_(plan_->geometry.recurrent_values, pools_.budget(), plan_.device().get()) {
  group_layers();
  if (on_device()) return;
  const Geometry& g = plan_->geometry;
  for (int layer = 0; layer < g.n_layers; ++layer) {
    for (int h = 0; h < g.kv_heads(layer); ++h) protected_stores_.push_back(protected_store(layer, h));
  }
}

Cache::~Cache() {
  KVANT_CHECK(!step_open_, "cache destroyed with an open step");
}

void Cache::group_layers() {
  group_of_layer_.resize(plan_->geometry.n_layers);
  for (LayersOfEntry& found : layer_groups(*plan_)) {
    for (const int layer : found.layers) group_of_layer_[layer] = static_cast<int>(groups_.size());
    const GroupRules rules = plan_.on_device() ? device_rules(*plan_, found.rules) : found.rules;
    groups_.push_back({rules, std::move(found.layers), nullptr});
  }
  if (plan_.on_device()) {
    device_ = std::make_unique<DevicePageStore>(plan_, pools_.budget());
    return;
  }
  for (LayerGroup& group : groups_)
    group.store = std::make_unique<HostPageStore>(*plan_, group.layers, pools_);
}

ProtectedStore Cache::protected_store(int layer, int kv_head) {
  ProtectedStore store;
  const int rows = protected_page_rows(*plan_, layer), d = plan_->geometry.dim(layer);
  if (rows == 0) return store;
  store.format = plan_->tail;
  store.pool = pools_.of(plan_->tail->short_page_bytes(d, rows));
  store.rows_per_page = rows;
  for (const Side side : kSides) {
    const HeadConstants& constants = plan_->head(layer, kv_head).side(side).context.constants;
    store.contexts[static_cast<int>(side)] = {d, constants, {}, rows};
  }
  return store;
}

Cache::Sequence Cache::empty_sequence() {
  const Geometry& g = plan_->geometry;
  Sequence sequence;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    EntryStore& store =
        on_device() ? static_cast<EntryStore&>(device_->of_group(static_cast<int>(i))) : *groups_[i].store;
    sequence.ledgers.push_back(std::make_unique<PageLedger>(groups_[i].rules, store));
  }
  if (on_device()) return sequence;
  sequence.heads.reserve(static_cast<std::size_t>(g.n_all_kv_heads()));
  for (int layer = 0; layer < g.n_layers; ++layer) {
    const int group = group_of_layer_[layer];
    for (int h = 0; h < g.kv_heads(layer); ++h) {
      const HeadPages pages{groups_[group].store.get(), sequence.ledgers[group].get(),
                            &protected_stores_[g.head_index(layer, h)]};
      sequence.heads.emplace_back(*plan_, layer, h, pages);
    }
  }
  return sequence;
}

Error Cache::out_of_memory(const char* doing) const {
  return shortage(
      "out of memory while {}: the KV cache holds {:.1f} MiB{}; use fewer tokens or a smaller recipe", doing,
      static_cast<double>(pools_.budget().taken()) / (1 << 20),
      pools_.budget().limit() > 0
          ? fmt::format(" of {:.1f} MiB", static_cast<double>(pools_.budget().limit()) / (1 << 20))
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
  sequences_.emplace(next_id_, empty_sequence());
  return next_id_++;
}

Result<SequenceId> Cache::fork(SequenceId from) {
  KVANT_RETURN_IF_ERROR(check_idle(from, "fork"));
  try {
    const Sequence& source = sequences_.at(from);
    Sequence copy = empty_sequence();
    for (std::size_t i = 0; i < groups_.size(); ++i) copy.ledgers[i]->copy_from(*source.ledgers[i]);
    copy.checkpoint_pages = source.checkpoint_pages;
    copy.sink = source.sink.share();
    copy.state = source.state;
    copy.checkpoint_state = source.checkpoint_state;
    copy.checkpoint_tokens = source.checkpoint_tokens;
    copy.sums = source.sums.share();
    copy.checkpoint_sums = source.checkpoint_sums.share();
    copy.protection = source.protection.share();
    for (std::size_t i = 0; i < copy.heads.size(); ++i) {
      if (!copy.heads[i].copy_from(source.heads[i])) return out_of_memory("forking a sequence");
    }
    sequences_.emplace(next_id_, std::move(copy));
    return next_id_++;
  } catch (const std::bad_alloc&) {
    return out_of_memory("forking a sequence");
  }
}

Status Cache::check_truncation(const Sequence& s, int n_tokens) const {
  if (n_tokens < 0 || n_tokens > s.length())
    return error("cannot truncate to {} tokens: the sequence has {}", n_tokens, s.length());
  const int sealed_tokens = s.ledgers[0]->n_sealed() * kPageTokens;
  const bool sums_up = s.sums.entry().held() ||
                       std::any_of(s.heads.begin(), s.heads.end(),
                                   [](const HeadState& head) { return head.correction() != nullptr; });
  const bool has_checkpoint = s.checkpoint_pages >= 0 && s.checkpoint_pages * kPageTokens <= n_tokens;
  if (sums_up && n_tokens > 0 && n_tokens < sealed_tokens && !has_checkpoint) {
    return error(
        "cannot truncate to {} tokens: the correction of {} sums over the first {} and can't forget some of "
        "them; keep those, or none, or make a checkpoint or a fork before the sequence goes on",
        n_tokens, label(plan_->recipe), sealed_tokens);
  }
  const Geometry& g = plan_->geometry;
  const bool has_state = n_tokens == 0 || n_tokens == s.length() || n_tokens == s.checkpoint_tokens;
  if (g.is_recurrent() && !has_state) {
    return error(
        "cannot truncate to {} tokens: {} has layers without attention, whose state is known after {} "
        "tokens{} "
        "alone; cut there, or make a checkpoint or a fork before the sequence goes on",
        n_tokens, g.model, s.length(),
        s.checkpoint_tokens > 0 ? fmt::format(" and after {}", s.checkpoint_tokens) : "");
  }
  for (int layer = 0; layer < g.n_layers; ++layer) {
    if (plan_->layers[layer].evict > 0 && n_tokens % kPageTokens != 0 && n_tokens < sealed_tokens) {
      return error(
          "cannot truncate to {} tokens: {} has evicted some of the first {} for good; cut at a multiple "
          "of {}, keep those, or fork before it goes on",
          n_tokens, label(plan_->recipe), sealed_tokens, kPageTokens);
    }
    const int first_needed = first_visible_token(n_tokens, g.sliding_window[layer]);
    const int first_held = s.ledgers[group_of_layer_[layer]]->first_page() * kPageTokens;
    if (n_tokens > 0 && first_needed < first_held) {
      return error("cannot truncate to {} tokens: layer {} slides over {} tokens and holds those from {} on",
                   n_tokens, layer, g.sliding_window[layer], first_held);
    }
  }
  return {};
}

Status Cache::truncate_copy(Sequence& copy, int n_tokens) {
  if (on_device()) return truncate_on_device(copy, n_tokens);
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const auto reopen = [&](PageEntry sealed, PageEntry tail) {
      for_each_head(copy, groups_[i], [&](const HeadState& head) {
        head.reopen(n_tokens / kPageTokens, n_tokens % kPageTokens, sealed, tail);
      });
    };
    if (!copy.ledgers[i]->truncate(n_tokens, reopen)) return out_of_memory("truncating a sequence");
  }
  if (std::all_of(copy.heads.begin(), copy.heads.end(),
                  [&](HeadState& head) { return head.truncate(n_tokens); }))
    return {};
  return out_of_memory("truncating a sequence");
}

// A fork is cut and takes the sequence's place, so that a failure half-way leaves that as it was.
Status Cache::truncate(SequenceId sequence, int n_tokens) {
  KVANT_RETURN_IF_ERROR(check_idle(sequence, "truncate"));
  Sequence& s = sequences_.at(sequence);
  KVANT_RETURN_IF_ERROR(check_truncation(s, n_tokens));
  Result<SequenceId> shorter = fork(sequence);
  if (!shorter.ok()) return shorter.error();
  Sequence& copy = sequences_.at(*shorter);
  Status cut;
  try {
    cut = truncate_copy(copy, n_tokens);
  } catch (const std::bad_alloc&) {
    cut = out_of_memory("truncating a sequence");
  }
  if (cut.ok()) {
    std::swap(s.heads, copy.heads);
    std::swap(s.ledgers, copy.ledgers);
    std::swap(s.sink, copy.sink);
    std::swap(s.sums, copy.sums);
    std::swap(s.checkpoint_sums, copy.checkpoint_sums);
    std::swap(s.protection, copy.protection);
    if (n_tokens == s.checkpoint_tokens && n_tokens > 0) s.state = s.checkpoint_state;
    if (n_tokens == 0) {
      s.checkpoint_pages = -1;
      s.checkpoint_tokens = 0;
      s.state = s.checkpoint_state = nullptr;
    }
  }
  free(*shorter);
  return cut;
}

Status Cache::checkpoint(SequenceId sequence) {
  KVANT_RETURN_IF_ERROR(check_idle(sequence, "checkpoint"));
  Sequence& s = sequences_.at(sequence);
  s.checkpoint_pages = -1;
  s.checkpoint_state = nullptr;
  s.checkpoint_tokens = 0;
  try {
    for (HeadState& head : s.heads) head.checkpoint();
    s.checkpoint_sums = s.sums.share();
  } catch (const std::bad_alloc&) {
    return out_of_memory("making a checkpoint");
  }
  s.checkpoint_pages = s.ledgers[0]->n_sealed();
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

HeadState& Cache::mutable_head(SequenceId sequence, int layer, int kv_head) {
  return sequences_.at(sequence).heads[plan_->geometry.head_index(layer, kv_head)];
}
const HeadState& Cache::head(SequenceId sequence, int layer, int kv_head) const {
  KVANT_CHECK(holds(sequence) && !on_device(), "the head of a sequence that the cache doesn't hold");
  return sequences_.at(sequence).heads[plan_->geometry.head_index(layer, kv_head)];
}

// Null where memory is exhausted.
std::shared_ptr<float> Cache::take_state() {
  std::shared_ptr<float> state = states_.take();
  if (state == nullptr && on_device() && device_->shrink()) state = states_.take();
  return state;
}

bool Cache::reserve_slice(const StepSlice& slice) {
  Sequence& s = sequences_.at(slice.sequence);
  if (plan_->geometry.is_recurrent()) {
    s.next_state = take_state();
    if (s.next_state == nullptr) return false;
  }
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    PageLedger& ledger = *s.ledgers[i];
    if (!ledger.reserve(slice.n_tokens, slice.is_prompt)) return false;
    if (on_device()) continue;
    bool enough = true;
    for_each_head(s, groups_[i], [&](HeadState& head) {
      enough = enough && (!head.seals_ahead() || ledger.hold_ahead()) && head.reserve();
    });
    if (!enough) return false;
  }
  return !on_device() || reserve_on_device(s);
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
    if (plan_->geometry.is_recurrent()) states_.keep_spares(widest_step_);
    for (const StepSlice& slice : step->slices_) {
      // Marks first: an abort returns every head to them, reserved or not.
      Sequence& s = sequences_.at(slice.sequence);
      for (const auto& ledger : s.ledgers) ledger->begin();
      for (HeadState& h : s.heads) h.begin();
    }
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
      for (const auto& ledger : s.ledgers) ledger->commit();
      for (HeadState& head : s.heads) head.commit();
      if (s.next_state != nullptr) s.state = std::move(s.next_state);
      if (s.next_sums.entry().held()) s.sums = std::move(s.next_sums);
      if (s.next_protection.tokens != nullptr) s.protection = std::move(s.next_protection);
    } else {
      for (HeadState& head : s.heads) head.abort();
      for (const auto& ledger : s.ledgers) ledger->abort();
      if (s.ledgers[0]->n_sealed() == 0) s.sink.reset();
      s.next_state.reset();
      if (s.length() == 0) s.sums.reset();
    }
    s.next_sums.reset();
    s.next_protection = {};
  }
}

CacheBytes Cache::bytes(SequenceId sequence) const {
  const Geometry& g = plan_->geometry;
  CacheBytes total;
  if (!holds(sequence)) return total;
  const Sequence& s = sequences_.at(sequence);
  total.recurrent = states_.state_bytes() * static_cast<std::int64_t>(states_of(s).size());
  if (on_device()) {
    add_bytes_on_device(s, total);
    return total;
  }
  for (int layer = 0; layer < g.n_layers; ++layer) {
    const int sink = plan_->layers[layer].sink;
    for (int h = 0; h < g.kv_heads(layer); ++h) {
      const HeadState::Bytes b = s.heads[g.head_index(layer, h)].bytes();
      const std::int64_t sink_part =
          b.protected_tokens == 0
              ? 0
              : b.protected_pages * std::min(sink, b.protected_tokens) / b.protected_tokens;
      total.sealed += b.sealed;
      total.sink += sink_part;
      total.protected_tokens += b.protected_pages - sink_part + b.lists;
      total.tail += b.tail;
      total.sealed_elements += std::int64_t{2} * b.sealed_tokens * g.dim(layer);
      total.elements += std::int64_t{2} * b.tokens * g.dim(layer);
    }
  }
  return total;
}

std::set<RecurrentState> Cache::states_of(const Sequence& sequence) {
  std::set<RecurrentState> states{sequence.state, sequence.checkpoint_state};
  states.erase(nullptr);
  return states;
}

// Takes from a sequence's bytes what other ones have counted, and remembers what it shares.
void Cache::leave_out_shared(const Sequence& sequence, SharedPages& counted, CacheBytes& bytes) const {
  for (const RecurrentState& state : states_of(sequence)) {
    if (!counted.states.insert(state).second) bytes.recurrent -= states_.state_bytes();
  }
  if (on_device()) return leave_out_shared_on_device(sequence, counted, bytes);
  using Kind = HeadState::HeldPage::Kind;
  for (int i = 0; i < static_cast<int>(sequence.heads.size()); ++i) {
    const bool protects = plan_->layers[sequence.heads[i].layer()].protect > 0;
    sequence.heads[i].for_each_page([&](const HeadState::HeldPage& page) {
      if (!page.shared || counted.pages.emplace(i, page.kind, page.room, page.id).second) return;
      (page.kind == Kind::sealed ? bytes.sealed
       : page.kind == Kind::tail ? bytes.tail
       : protects                ? bytes.protected_tokens
                                 : bytes.sink) -= page.bytes;
    });
  }
}

CacheBytes& CacheBytes::operator+=(const CacheBytes& more) {
  sealed += more.sealed;
  protected_tokens += more.protected_tokens;
  sink += more.sink;
  tail += more.tail;
  sealed_elements += more.sealed_elements;
  elements += more.elements;
  recurrent += more.recurrent;
  return *this;
}

CacheBytes Cache::bytes() const {
  CacheBytes total;
  SharedPages counted;
  for (const auto& [id, sequence] : sequences_) {
    CacheBytes b = bytes(id);
    leave_out_shared(sequence, counted, b);
    total += b;
  }
  return total;
}

}  // namespace kvant
