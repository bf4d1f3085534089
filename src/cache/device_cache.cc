// A cache whose pages lie on a device: what is otherwise the business of heads (head_state.h) is done for all
// of them at once, by the ledger alone, and by the library.
#include <algorithm>
#include <random>

#include "base/check.h"
#include "base/float16.h"
#include "cache/cache.h"
#include "cache/device_constants.h"
#include "cache/page_counts.h"
#include "cache/synthetic_rows.h"

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

// Entries for a sequence of n_tokens. False where memory is exhausted.
bool Cache::take_filled(int n_tokens, Sequence& filled) {
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const GroupRules& rules = groups_[i].rules;
    const PageCounts pages = page_counts(n_tokens, rules.window, rules.sliding_window);
    if (!filled.ledgers[i]->take_all(n_tokens, rules.seals ? pages.sealed : pages.freed, pages.freed))
      return false;
  }
  if (page_counts(n_tokens, device_window(*plan_)).sealed > 0 && !take_sink(filled)) return false;
  return !protects_by_score(*plan_) || fill_protection(n_tokens, filled.protection);
}

namespace {

// What the library needs to write one page of a group's layers and to seal it, in the memory of the device.
struct SyntheticPage {
  std::int32_t tail_id = 0, sealed_id = 0;
  std::int32_t tail_page = 0, sealed_page = 0;
  std::int32_t seq[kPageTokens] = {}, token[kPageTokens] = {};
};

// Numbers of a page of one side, of the widest layer.
std::size_t page_values(const Geometry& g) {
  int most = 0;
  for (int layer = 0; layer < g.n_layers; ++layer) most = std::max(most, g.n_kv(layer));
  return std::size_t{kPageTokens} * most;
}

// A page of random rows in BF16, of K, then of V. Null where memory is exhausted.
DeviceMemory random_rows(PageDevice& device, const Geometry& g, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> rows(2 * page_values(g));
  for (std::uint16_t& x : rows) x = bf16_from_float(normal(random));
  DeviceMemory memory = allocate_on(device, rows.size() * sizeof rows[0]);
  if (memory != nullptr) device.upload(memory.get(), rows.data(), rows.size() * sizeof rows[0]);
  return memory;
}

}  // namespace

// One page is written and sealed, and copied to all others.
Status Cache::fill_group(int group, const char* rows, const SyntheticRows& protected_rows,
                         const Sequence& filled) {
  const Geometry& g = plan_->geometry;
  PageDevice& device = *device_->device();
  const PageLibrary& library = device.library();
  DeviceEntryStore& pages = device_->of_group(group);
  const PageLedger& ledger = *filled.ledgers[group];
  const bool seals = ledger.first_page() < ledger.n_sealed();
  const EntryHold tail(pages, pages.take(kPageTokens));
  const DeviceMemory memory = allocate_on(device, sizeof(SyntheticPage));
  if (!tail.entry().held() || memory == nullptr) return out_of_memory("filling a sequence");
  SyntheticPage page;
  page.tail_id = pages.table(kPageTokens).table_id(tail.entry().id);
  if (seals) page.sealed_id = pages.table(kSealedRoom).table_id(ledger.sealed(ledger.first_page()).id);
  for (int t = 0; t < kPageTokens; ++t) page.token[t] = t;
  device.upload(memory.get(), &page, sizeof page);
  auto* on_device = reinterpret_cast<SyntheticPage*>(memory.get());
  for (const int layer : device_->layers(group)) {
    const LayerShape formats = layer_shape(*plan_, layer);
    const kvant_decode_shape shape = formats.of(1, *plan_);
    kvant_decode_layer of_layer{};
    of_layer.struct_size = sizeof of_layer;
    of_layer.tail = device_->tails(layer).pages(layer);
    of_layer.tail.table = &on_device->tail_id;
    device_->add_sealed(of_layer, layer);
    of_layer.sealed.table = &on_device->sealed_id;
    of_layer.sink = device_->has_sink() ? plan_->layers[layer].sink : 0;
    device_->constants().add_to(of_layer, layer);
    kvant_new_rows new_rows{};
    new_rows.struct_size = sizeof new_rows;
    new_rows.n_rows = kPageTokens;
    new_rows.seq = on_device->seq;
    new_rows.tail_token = on_device->token;
    new_rows.keys = rows;
    new_rows.values = rows + page_values(g) * sizeof(std::uint16_t);
    new_rows.key_row_stride = new_rows.value_row_stride = g.n_kv(layer);
    new_rows.key_head_stride = new_rows.value_head_stride = g.dim(layer);
    KVANT_RETURN_IF_ERROR(library_status(device, "filling a sequence",
                                         library.append(&shape, &of_layer, &new_rows, device.stream())));
    if (!seals) continue;
    if (protects_by_score(*plan_, layer)) KVANT_RETURN_IF_ERROR(protected_rows.fill(shape, of_layer, layer));
    const kvant_seal_range range{sizeof range,
                                 &on_device->tail_page,
                                 &on_device->sealed_page,
                                 nullptr,
                                 1,
                                 0,
                                 device_->constants().page_metrics(layer)};
    KVANT_RETURN_IF_ERROR(library_status(device, "sealing a page",
                                         library.seal_pages(&shape, &of_layer, &range, device.stream())));
    if (of_layer.sink > 0) device_->keep_sink(tail.entry(), filled.sink.entry(), layer);
  }
  ledger.for_each_entry([&](int page_of_ledger, PageEntry entry) {
    if (entry.room != kSealedRoom) {
      pages.copy(tail.entry(), kPageTokens, entry);
    } else if (page_of_ledger > ledger.first_page()) {
      pages.copy(ledger.sealed(ledger.first_page()), kPageTokens, entry);
    }
  });
  return device.finish();
}

Status Cache::fill_device(SequenceId id, int n_tokens, std::uint64_t seed) {
  if (n_tokens == 0) return {};
  PageDevice& device = *device_->device();
  device.enter();
  Sequence filled = empty_sequence();
  if (!take_filled(n_tokens, filled)) return out_of_memory("filling a sequence");
  const SyntheticRows protected_rows(*plan_, *device_, filled.protection);
  const DeviceMemory rows = random_rows(device, plan_->geometry, seed);
  if (!protected_rows.enough_memory() || rows == nullptr) return out_of_memory("filling a sequence");
  for (int group = 0; group < device_->n_groups(); ++group)
    KVANT_RETURN_IF_ERROR(fill_group(group, rows.get(), protected_rows, filled));
  std::swap(sequences_.at(id), filled);
  return {};
}

}  // namespace kvant
