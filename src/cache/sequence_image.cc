// All numbers are little-endian, integers are of 32 bits:
//   magic, version, layers, KV heads, head size (where layers differ, the most and the largest), length,
//   pages summed up by the checkpoint for each layer group: sealed pages, freed pages of a model with layers
//   without attention: the tokens that the checkpoint's state has seen (0: none), and in F32 the state of the
//   sequence, unless it is empty, and of the checkpoint, if it is another for each (layer, KV head): what
//   lies beside the entries (HeadState::save) for each layer group: its sealed entries in canonical order
//   (PageLayout), oldest first; pages of which all is evicted are zero. Then the unsealed pages: of each head
//   K's rows, then V's.
#include "cache/sequence_image.h"

#include <cstring>
#include <limits>
#include <new>

namespace kvant {
namespace {

constexpr std::uint32_t kMagic = 0x7173766b;  // "kvsq"
constexpr int kVersion = 2;                   // 1: means of tcq pages had 16 bits
constexpr int kMaxTokens = 1 << 30;
constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();

std::array<std::int32_t, 5> shape_of(const Geometry& g) {
  return {static_cast<std::int32_t>(kMagic), kVersion, g.n_layers, g.n_kv_heads, g.head_dim};
}

int rows_of(const PageLedger& ledger, int page) {
  return std::min(kPageTokens, ledger.length() - page * kPageTokens);
}

}  // namespace

// --- export ---

SequenceExport::SequenceExport(const Cache& cache, SequenceId sequence)
    : cache_(&cache), sequence_(sequence) {
  if (cache.on_device()) device_.emplace(cache.plan(), *cache.device_);
}

Result<SequenceExport> SequenceExport::start(const Cache& cache, SequenceId sequence) {
  KVANT_RETURN_IF_ERROR(cache.check_idle(sequence, "export"));
  try {
    SequenceExport made(cache, sequence);
    KVANT_RETURN_IF_ERROR(made.write_head());
    return made;
  } catch (const std::bad_alloc&) {
    return cache.out_of_memory("exporting a sequence");
  }
}

int SequenceExport::n_sealed(std::size_t group) const {
  const PageLedger& ledger = *cache_->sequences_.at(sequence_).ledgers[group];
  return device_ ? device_->n_sealed(ledger) : ledger.n_sealed();
}

const PageLayout& SequenceExport::layout(std::size_t group) const {
  return device_ ? device_->layout(static_cast<int>(group)) : cache_->groups_[group].store->layout();
}

Status SequenceExport::write_head() {
  const Cache::Sequence& s = cache_->sequences_.at(sequence_);
  to_.write(shape_of(cache_->plan().geometry));
  to_.write<std::int32_t>(s.length());
  to_.write<std::int32_t>(s.checkpoint_pages);
  std::size_t n_bytes = 0;
  for (std::size_t i = 0; i < s.ledgers.size(); ++i) {
    to_.write<std::int32_t>(n_sealed(i));
    to_.write<std::int32_t>(s.ledgers[i]->first_page());
    n_bytes += static_cast<std::size_t>(n_sealed(i) - s.ledgers[i]->first_page()) * layout(i).entry_bytes();
  }
  if (cache_->plan().geometry.is_recurrent()) KVANT_RETURN_IF_ERROR(write_states(s));
  if (device_ && protects_by_score(cache_->plan())) {
    KVANT_RETURN_IF_ERROR(device_->write_protection(to_, n_sealed(0), s.length(), s.protection));
  } else if (device_) {
    KVANT_RETURN_IF_ERROR(
        device_->write_heads(to_, n_sealed(0), {s.sink.entry(), s.sums.entry(), s.checkpoint_sums.entry()}));
  }
  for (const HeadState& head : s.heads) head.save(to_);
  to_.reserve(n_bytes);
  page_ = s.ledgers[0]->first_page();
  return {};
}

Status SequenceExport::write_states(const Cache::Sequence& s) {
  const auto n = static_cast<std::size_t>(cache_->plan().geometry.recurrent_values);
  const auto write = [&](const RecurrentState& state) -> Status {
    if (device_) return device_->write_state(to_, state.get());
    std::byte* to = to_.skip(n * sizeof(float));
    state == nullptr ? std::memset(to, 0, n * sizeof(float))
                     : std::memcpy(to, state.get(), n * sizeof(float));
    return {};
  };
  to_.write<std::int32_t>(s.checkpoint_tokens);
  if (s.length() > 0) KVANT_RETURN_IF_ERROR(write(s.state));
  if (0 < s.checkpoint_tokens && s.checkpoint_tokens < s.length())
    KVANT_RETURN_IF_ERROR(write(s.checkpoint_state));
  return {};
}

Status SequenceExport::write_page(std::size_t group, int page) {
  const Cache::Sequence& s = cache_->sequences_.at(sequence_);
  const PageLedger& ledger = *s.ledgers[group];
  if (device_) return device_->write_page(to_, static_cast<int>(group), ledger, n_sealed(group), page);
  const HostPageStore& store = *cache_->groups_[group].store;
  if (page < ledger.n_sealed()) {
    std::byte* entry = to_.skip(store.layout().entry_bytes());
    cache_->for_each_head(s, cache_->groups_[group],
                          [&](const HeadState& head) { head.export_page(page, entry); });
    return {};
  }
  const int n = rows_of(ledger, page);
  for (int head = 0; head < store.n_heads(); ++head) {
    for (const Side side : kSides)
      store.export_rows(ledger.tail(page), head, side, n,
                        to_.skip(cache_->plan().tail->short_page_bytes(store.head_dim(head), n)));
  }
  return {};
}

Result<bool> SequenceExport::advance(std::size_t n_bytes) {
  KVANT_RETURN_IF_ERROR(cache_->check_idle(sequence_, "export"));
  const Cache::Sequence& s = cache_->sequences_.at(sequence_);
  const std::size_t start = to_.size();
  try {
    for (; group_ < s.ledgers.size();
         ++group_, page_ = group_ < s.ledgers.size() ? s.ledgers[group_]->first_page() : 0) {
      for (; page_ < pages_for(s.ledgers[group_]->length()); ++page_) {
        if (to_.size() - start >= n_bytes) return false;
        KVANT_RETURN_IF_ERROR(write_page(group_, page_));
      }
    }
  } catch (const std::bad_alloc&) {
    return cache_->out_of_memory("exporting a sequence");
  }
  return true;
}

Result<std::vector<std::byte>> Cache::export_sequence(SequenceId sequence) const {
  auto whole = SequenceExport::start(*this, sequence);
  if (!whole.ok()) return whole.error();
  if (const auto done = whole->advance(kAll); !done.ok()) return done.error();
  return whole->take();
}

// --- import ---

SequenceImport::SequenceImport(Cache& cache, std::span<const std::byte> bytes)
    : cache_(&cache), n_bytes_(bytes.size()), from_(bytes) {
  if (cache.on_device()) device_.emplace(cache.plan(), *cache.device_);
}

// False where memory is exhausted.
bool SequenceImport::read_head() {
  sequence_ = cache_->empty_sequence();
  const auto shape = from_.read<std::array<std::int32_t, 5>>();
  from_.require(shape == shape_of(cache_->plan().geometry));
  const int length = from_.read_int(0, kMaxTokens);
  sequence_.checkpoint_pages = from_.read_int(-1, length / kPageTokens);
  for (std::size_t i = 0; i < cache_->groups_.size() && from_.ok(); ++i) {
    if (!read_ledger(i, length)) return false;
  }
  if (cache_->plan().geometry.is_recurrent() && !read_states(length)) return false;
  if (!read_heads()) return false;
  if (from_.ok()) page_ = sequence_.ledgers[0]->first_page();
  return true;
}

bool SequenceImport::read_ledger(std::size_t i, int length) {
  const Plan& plan = cache_->plan();
  const Cache::LayerGroup& group = cache_->groups_[i];
  const int sealed = n_sealed_.emplace_back(from_.read_int(0, length / kPageTokens));
  const int freed = from_.read_int(0, freed_pages(length, group.rules.sliding_window, sealed));
  // What it is to hold has to be there, before memory is taken for it.
  const std::size_t entry_bytes =
      (device_ ? device_->layout(static_cast<int>(i)) : group.store->layout()).entry_bytes();
  from_.require(from_.n_left() / entry_bytes >= static_cast<std::size_t>(sealed - freed));
  const int d = plan.geometry.dim(group.layers.front());
  from_.require(from_.n_left() / plan.tail->short_page_bytes(d, 1) >=
                static_cast<std::size_t>(length - sealed * kPageTokens));
  // Who attends on a device counts on it.
  from_.require(!device_ || !group.rules.seals || sealed == n_sealed_.front());
  if (!from_.ok()) return true;
  return sequence_.ledgers[i]->take_all(length, group.rules.seals ? sealed : freed, freed);
}

bool SequenceImport::read_states(int length) {
  const auto n = static_cast<std::size_t>(cache_->plan().geometry.recurrent_values);
  const auto read = [&](RecurrentState& state) {
    const std::byte* from = from_.skip(n * sizeof(float));
    if (from == nullptr) return true;
    const std::shared_ptr<float> copy = cache_->take_state();
    if (copy == nullptr) return false;
    device_ ? device_->read_state(from, copy.get())
            : static_cast<void>(std::memcpy(copy.get(), from, n * sizeof(float)));
    state = copy;
    return true;
  };
  sequence_.checkpoint_tokens = from_.read_int(0, length);
  if (length > 0 && !read(sequence_.state)) return false;
  if (sequence_.checkpoint_tokens == length) sequence_.checkpoint_state = sequence_.state;
  const bool has_other = 0 < sequence_.checkpoint_tokens && sequence_.checkpoint_tokens < length;
  return !has_other || read(sequence_.checkpoint_state);
}

bool SequenceImport::read_heads() {
  if (device_ && from_.ok() && protects_by_score(cache_->plan())) {
    DeviceProtection& protection = sequence_.protection;
    const int length = sequence_.ledgers[0]->length();
    if (!cache_->take_protection(length, n_sealed_.front(), protection)) return false;
    device_->read_protection(from_, n_sealed_.front(), length, protection);
  } else if (device_ && from_.ok()) {
    if (n_sealed_.front() > 0 && !cache_->take_sink(sequence_)) return false;
    if (is_corrected(cache_->plan())) {
      for (EntryHold* sums : {&sequence_.sums, &sequence_.checkpoint_sums}) {
        *sums = cache_->take_sums();
        if (!sums->entry().held()) return false;
      }
    }
    DeviceImage::Beside beside{sequence_.sink.entry(), sequence_.sums.entry(),
                               sequence_.checkpoint_sums.entry()};
    device_->read_heads(from_, n_sealed_.front(), beside);
    if (!beside.sums.held()) sequence_.sums.reset();
    if (!beside.checkpoint_sums.held()) sequence_.checkpoint_sums.reset();
  }
  for (HeadState& head : sequence_.heads) {
    if (from_.ok() && !head.load(from_)) return false;
  }
  return true;
}

// The next one of the group. False where memory is exhausted.
bool SequenceImport::read_page() {
  const Plan& plan = cache_->plan();
  const PageLedger& ledger = *sequence_.ledgers[group_];
  if (device_) {
    device_->read_page(from_, static_cast<int>(group_), ledger, n_sealed_[group_], page_);
    return true;
  }
  HostPageStore& store = *cache_->groups_[group_].store;
  if (page_ < ledger.n_sealed()) {
    const std::byte* entry = from_.skip(store.layout().entry_bytes());
    bool enough = true;
    if (entry != nullptr) {
      cache_->for_each_head(sequence_, cache_->groups_[group_],
                            [&](HeadState& head) { enough = enough && head.import_page(page_, entry); });
    }
    return enough;
  }
  const int n = rows_of(ledger, page_);
  for (int head = 0; head < store.n_heads(); ++head) {
    for (const Side side : kSides) {
      const std::byte* rows = from_.skip(plan.tail->short_page_bytes(store.head_dim(head), n));
      if (rows != nullptr) store.import_rows(rows, n, head, side, ledger.tail(page_));
    }
  }
  return true;
}

Result<bool> SequenceImport::advance(std::size_t n_bytes) {
  if (cache_->step_open_)
    return error("cannot import a sequence while a step is open: commit or abort it first");
  const std::size_t start = from_.n_left();
  try {
    if (!std::exchange(begun_, true) && !read_head()) return cache_->out_of_memory("importing a sequence");
    const std::size_t n_groups = sequence_.ledgers.size();
    for (; group_ < n_groups && from_.ok();
         ++group_, page_ = group_ < n_groups ? sequence_.ledgers[group_]->first_page() : 0) {
      for (; page_ < pages_for(sequence_.ledgers[group_]->length()) && from_.ok(); ++page_) {
        if (start - from_.n_left() >= n_bytes) return false;
        if (!read_page()) return cache_->out_of_memory("importing a sequence");
      }
    }
  } catch (const std::bad_alloc&) {
    return cache_->out_of_memory("importing a sequence");
  }
  from_.require(from_.at_end());
  if (from_.ok() && device_) KVANT_RETURN_IF_ERROR(cache_->device_->device()->finish());
  if (from_.ok()) return true;
  const Plan& plan = cache_->plan();
  return error(
      "cannot import a sequence of {} bytes: they are not of a cache of {} with {} layers, {} KV heads and "
      "head size {}, or they are damaged; compute the sequence again",
      n_bytes_, label(plan.recipe), plan.geometry.n_layers, plan.geometry.n_kv_heads, plan.geometry.head_dim);
}

SequenceId SequenceImport::take() {
  cache_->sequences_.emplace(cache_->next_id_, std::move(sequence_));
  return cache_->next_id_++;
}

Result<SequenceId> Cache::import_sequence(std::span<const std::byte> bytes) {
  SequenceImport whole(*this, bytes);
  if (const auto done = whole.advance(kAll); !done.ok()) return done.error();
  try {
    return whole.take();
  } catch (const std::bad_alloc&) {
    return out_of_memory("importing a sequence");
  }
}

}  // namespace kvant
