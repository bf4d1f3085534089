// A cache whose pages lie on a device: what is otherwise the business of heads (head_state.h) is done for all
// of them at once, by the ledger alone, and by the library.
#include "base/check.h"
#include "cache/cache.h"

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

}  // namespace kvant
