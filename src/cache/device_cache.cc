// A cache whose pages lie on a device: what is otherwise the business of heads (head_state.h) is done for all
// of them at once, by the ledger alone, and by the library.
#include <algorithm>

#include "base/check.h"
#include "cache/cache.h"
#include "cache/page_counts.h"

namespace kvant {

const PageLedger& Step::ledger(int slice, int layer) const {
  return *cache_.sequences_.at(slices_[slice].sequence).ledgers[cache_.group_of_layer_[layer]];
}

DevicePageStore& Step::device_pages() const {
  KVANT_CHECK(cache_.on_device(), "pages that lie in host memory");
  return *cache_.device_;
}

PageEntry Step::sink(int slice) const {
  return cache_.sequences_.at(slices_[slice].sequence).sink.entry();
}

PageEntry Step::sums(int slice) const {
  return cache_.sequences_.at(slices_[slice].sequence).sums.entry();
}

PageEntry Step::next_sums(int slice) const {
  return cache_.sequences_.at(slices_[slice].sequence).next_sums.entry();
}

// The sink has an entry of its own from when its page is sealed; a correction's sums are made anew when pages
// are.
bool Cache::reserve_on_device(Sequence& sequence) {
  const PageLedger& ledger = *sequence.ledgers.front();
  if (ledger.end_sealed() > 0 && !take_sink(sequence)) return false;
  if (protects_by_score(*plan_) && !reserve_protection(sequence)) return false;
  if (!is_corrected(*plan_)) return true;
  if (!sequence.sums.entry().held()) {
    sequence.sums = take_sums();
    if (!sequence.sums.entry().held()) return false;
    device_->clear_sums(sequence.sums.entry());
  }
  if (ledger.end_sealed() == ledger.n_sealed()) return true;
  sequence.next_sums = take_sums();
  return sequence.next_sums.entry().held();
}

// None where memory is exhausted.
EntryHold Cache::take_sums() {
  return {device_->beside(), device_->beside().take(kSumsRoom)};
}

// False where memory is exhausted.
bool Cache::take_sink(Sequence& sequence) {
  if (!device_->has_sink() || sequence.sink.entry().held()) return true;
  const PageEntry sink = device_->beside().take(kSinkRoom);
  if (sink.held()) sequence.sink = EntryHold(device_->beside(), sink);
  return sink.held();
}

Status Cache::truncate_on_device(Sequence& copy, int n_tokens) {
  const bool forgets = n_tokens / kPageTokens < copy.ledgers.front()->n_sealed();
  for (int group = 0; group < device_->n_groups(); ++group) {
    Status reopened;
    const auto reopen = [&](PageEntry sealed, PageEntry tail) {
      const bool is_first = n_tokens < kPageTokens;
      reopened = device_->reopen(group, n_tokens / kPageTokens, sealed,
                                 is_first ? copy.sink.entry() : PageEntry{}, copy.protection, tail);
    };
    if (!copy.ledgers[group]->truncate(n_tokens, reopen)) return out_of_memory("truncating a sequence");
    if (!reopened.ok()) return reopened;
  }
  if (forgets) {
    if (n_tokens == 0) copy.checkpoint_sums.reset();
    copy.sums = copy.checkpoint_sums.share();
  }
  if (copy.ledgers.front()->n_sealed() == 0) copy.sink.reset();
  copy.protection.truncate(n_tokens, copy.ledgers.front()->n_sealed());
  return {};
}

void Cache::add_bytes_on_device(const Sequence& sequence, CacheBytes& bytes) const {
  const Geometry& g = plan_->geometry;
  for (int group = 0; group < device_->n_groups(); ++group) {
    const DeviceEntryStore& pages = device_->of_group(group);
    const PageLedger& ledger = *sequence.ledgers[group];
    ledger.for_each_entry([&](int /*page*/, PageEntry entry) {
      (entry.room == kSealedRoom ? bytes.sealed : bytes.tail) += pages.entry_bytes(entry.room);
    });
    std::int64_t of_token = 0;
    for (const int layer : device_->layers(group)) of_token += std::int64_t{2} * g.n_kv(layer);
    bytes.sealed_elements += of_token * (ledger.n_sealed() - ledger.first_page()) * kPageTokens;
    bytes.elements += of_token * (ledger.length() - ledger.first_page() * kPageTokens);
  }
  const DeviceEntryStore& beside = device_->beside();
  if (sequence.sink.entry().held()) bytes.sink = beside.entry_bytes(kSinkRoom);
  for (const EntryHold* sums : {&sequence.sums, &sequence.checkpoint_sums})
    if (sums->entry().held()) bytes.protected_tokens += beside.entry_bytes(kSumsRoom);
  add_protected_bytes(sequence.protection, bytes);
}

void Cache::leave_out_shared_on_device(const Sequence& sequence, SharedPages& counted,
                                       CacheBytes& bytes) const {
  using Kind = HeadState::HeldPage::Kind;
  constexpr int kBeside = -1;
  const auto leave_out_of = [&](int group, PageEntry entry, Kind kind, std::int64_t& of_kind) {
    const DeviceEntryStore& store = group == kBeside ? device_->beside() : device_->of_group(group);
    if (!store.shared(entry) || counted.pages.emplace(group, kind, entry.room, entry.id).second) return;
    of_kind -= store.entry_bytes(entry.room);
  };
  for (int group = 0; group < device_->n_groups(); ++group) {
    sequence.ledgers[group]->for_each_entry([&](int /*page*/, PageEntry entry) {
      const bool sealed = entry.room == kSealedRoom;
      leave_out_of(group, entry, sealed ? Kind::sealed : Kind::tail, sealed ? bytes.sealed : bytes.tail);
    });
  }
  const auto leave_out = [&](PageEntry entry, Kind kind, std::int64_t& of_kind) {
    leave_out_of(kBeside, entry, kind, of_kind);
  };
  if (const PageEntry sink = sequence.sink.entry(); sink.held())
    leave_out(sink, Kind::protected_rows, bytes.sink);
  for (const EntryHold* sums : {&sequence.sums, &sequence.checkpoint_sums})
    if (sums->entry().held()) leave_out(sums->entry(), Kind::protected_rows, bytes.protected_tokens);
  for (const EntryHold& rows : sequence.protection.pages)
    leave_out(rows.entry(), Kind::protected_rows, bytes.protected_tokens);
  if (const PageEntry observers = sequence.protection.observers.entry(); observers.held())
    leave_out(observers, Kind::tail, bytes.tail);
}

// --- what scores protect ---

const DeviceProtection& Step::protection(int slice) const {
  return cache_.sequences_.at(slices_[slice].sequence).protection;
}

const DeviceProtection& Step::next_protection(int slice) const {
  return cache_.sequences_.at(slices_[slice].sequence).next_protection;
}

// Entries for all that a sequence of these lengths may have. False where memory is exhausted.
bool Cache::take_protection(int n_tokens, int n_sealed, DeviceProtection& protection) {
  protection.tokens = std::make_shared<ProtectedTokens>();
  protection.tokens->heads.resize(static_cast<std::size_t>(plan_->geometry.n_all_kv_heads()));
  for (int i = 0; i < protected_pages(*plan_, n_sealed); ++i) {
    protection.pages.emplace_back(device_->beside(), device_->beside().take(kProtectedRoom));
    if (!protection.pages.back().entry().held()) return false;
  }
  if (open_observers(n_tokens) == 0) return true;
  protection.observers = EntryHold(device_->beside(), device_->beside().take(kObserversRoom));
  return protection.observers.entry().held();
}

// What a step changes of the host's part it changes in a copy; on the device it writes rows that no committed
// sequence counts on.
bool Cache::reserve_protection(Sequence& sequence) {
  const PageLedger& ledger = *sequence.ledgers.front();
  const DeviceProtection& now = sequence.protection;
  DeviceProtection next;
  const bool changes =
      ledger.end() / kPageTokens > ledger.length() / kPageTokens || ledger.end_sealed() > ledger.n_sealed();
  next.tokens = now.tokens;
  if (now.tokens == nullptr) {
    next.tokens = std::make_shared<ProtectedTokens>();
    next.tokens->heads.resize(static_cast<std::size_t>(plan_->geometry.n_all_kv_heads()));
  } else if (changes) {
    next.tokens = std::make_shared<ProtectedTokens>(*now.tokens);
  }
  if (!reserve_protected_rows(sequence, next) || !reserve_observers(sequence, next)) return false;
  sequence.next_protection = std::move(next);
  return true;
}

// Rows of a step that seals go behind those that there are: to entries that nobody else holds.
bool Cache::reserve_protected_rows(const Sequence& sequence, DeviceProtection& next) {
  const PageLedger& ledger = *sequence.ledgers.front();
  const DeviceProtection& now = sequence.protection;
  const bool seals = ledger.end_sealed() > ledger.n_sealed();
  const std::size_t n_pages = seals ? protected_pages(*plan_, ledger.end_sealed()) : now.pages.size(),
                    first_written = next.tokens->fewest_rows(*plan_) / kPageTokens;
  for (std::size_t i = 0; i < std::max(n_pages, now.pages.size()); ++i) {
    const bool is_there = i < now.pages.size();
    const bool is_written = seals && i >= first_written;
    if (is_there && !(is_written && device_->beside().shared(now.pages[i].entry()))) {
      next.pages.push_back(now.pages[i].share());
      continue;
    }
    next.pages.emplace_back(device_->beside(), device_->beside().take(kProtectedRoom));
    if (!next.pages.back().entry().held()) return false;
    if (is_there) device_->beside().copy(now.pages[i].entry(), kPageTokens, next.pages.back().entry());
  }
  return true;
}

bool Cache::reserve_observers(const Sequence& sequence, DeviceProtection& next) {
  const PageLedger& ledger = *sequence.ledgers.front();
  const DeviceProtection& now = sequence.protection;
  if (open_observers(ledger.end()) == 0) return true;
  const bool stays = ledger.end() / kPageTokens == ledger.length() / kPageTokens;
  const int page_end = (ledger.end() / kPageTokens + 1) * kPageTokens;
  next.first_observer = first_observer_of(page_end, ledger.length(), stays ? now.first_observer : -1);
  const bool goes_on = stays && now.observers.entry().held();
  if (goes_on && !device_->beside().shared(now.observers.entry())) {
    next.observers = now.observers.share();
    return true;
  }
  next.observers = EntryHold(device_->beside(), device_->beside().take(kObserversRoom));
  if (!next.observers.entry().held()) return false;
  if (goes_on) device_->beside().copy(now.observers.entry(), kObservers, next.observers.entry());
  return true;
}

// The sink's part of protected rows counts as the sink's; scores and lists are kept by the host.
void Cache::add_protected_bytes(const DeviceProtection& protection, CacheBytes& bytes) const {
  if (protection.tokens == nullptr) return;
  const Geometry& g = plan_->geometry;
  std::int64_t n_rows = 0, n_sink = 0;
  for (int layer = 0; layer < g.n_layers; ++layer) {
    for (int h = 0; h < g.n_kv_heads; ++h) {
      const ProtectedTokens::Head& head = protection.tokens->heads[g.head_index(layer, h)];
      const auto n = static_cast<int>(head.tokens.size());
      n_rows += n;
      n_sink += std::min(plan_->layers[layer].sink, n);
      int n_masked = 0;
      for (int i = 0; i < n; ++i)
        n_masked += i == 0 || head.tokens[i] / kPageTokens != head.tokens[i - 1] / kPageTokens ? 1 : 0;
      bytes.protected_tokens += HeadState::list_bytes(n, n_masked) + head.scores.bytes();
    }
  }
  const std::int64_t in_rows =
      static_cast<std::int64_t>(protection.pages.size()) * device_->beside().entry_bytes(kProtectedRoom);
  const std::int64_t of_sink = n_rows > 0 ? in_rows * n_sink / n_rows : 0;
  bytes.sink += of_sink;
  bytes.protected_tokens += in_rows - of_sink;
  if (protection.observers.entry().held()) bytes.tail += device_->beside().entry_bytes(kObserversRoom);
}

}  // namespace kvant
