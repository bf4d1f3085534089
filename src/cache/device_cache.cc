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

void Cache::group_on_device() {
  device_ = std::make_unique<DevicePageStore>(*plan_, pools_.budget());
  LayerGroup group;
  group.rules = {.window = device_window(*plan_),
                 .prefill = plan_->recipe.prefill,
                 .tail_step = kPageTokens,
                 .tail_lasts = true};
  for (int layer = 0; layer < plan_->geometry.n_layers; ++layer) group.layers.push_back(layer);
  group_of_layer_.assign(plan_->geometry.n_layers, 0);
  groups_.push_back(std::move(group));
}

const PageLedger& Step::ledger(int slice) const {
  return *cache_.sequences_.at(slices_[slice].sequence).ledgers.front();
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
  return {*device_, device_->take(kSumsRoom)};
}

// False where memory is exhausted.
bool Cache::take_sink(Sequence& sequence) {
  if (!device_->has_sink() || sequence.sink.entry().held()) return true;
  const PageEntry sink = device_->take(kSinkRoom);
  if (sink.held()) sequence.sink = EntryHold(*device_, sink);
  return sink.held();
}

Status Cache::truncate_on_device(Sequence& copy, int n_tokens) {
  Status reopened;
  const auto reopen = [&](PageEntry sealed, PageEntry tail) {
    const bool is_first = n_tokens < kPageTokens;
    reopened = device_->reopen(n_tokens / kPageTokens, sealed, is_first ? copy.sink.entry() : PageEntry{},
                               copy.protection, tail);
  };
  const bool forgets = n_tokens / kPageTokens < copy.ledgers.front()->n_sealed();
  if (!copy.ledgers.front()->truncate(n_tokens, reopen)) return out_of_memory("truncating a sequence");
  if (forgets) {
    if (n_tokens == 0) copy.checkpoint_sums.reset();
    copy.sums = copy.checkpoint_sums.share();
  }
  if (copy.ledgers.front()->n_sealed() == 0) copy.sink.reset();
  copy.protection.truncate(n_tokens, copy.ledgers.front()->n_sealed());
  return reopened;
}

void Cache::add_bytes_on_device(const Sequence& sequence, CacheBytes& bytes) const {
  const Geometry& g = plan_->geometry;
  const PageLedger& ledger = *sequence.ledgers.front();
  ledger.for_each_entry([&](int /*page*/, PageEntry entry) {
    (entry.room == kSealedRoom ? bytes.sealed : bytes.tail) += device_->entry_bytes(entry.room);
  });
  if (sequence.sink.entry().held()) bytes.sink = device_->entry_bytes(kSinkRoom);
  for (const EntryHold* sums : {&sequence.sums, &sequence.checkpoint_sums})
    if (sums->entry().held()) bytes.protected_tokens += device_->entry_bytes(kSumsRoom);
  add_protected_bytes(sequence.protection, bytes);
  const std::int64_t elements_of_token = std::int64_t{2} * g.n_layers * g.n_kv_heads * g.head_dim;
  bytes.sealed_elements = elements_of_token * ledger.n_sealed() * kPageTokens;
  bytes.elements = elements_of_token * ledger.length();
}

void Cache::leave_out_shared_on_device(const Sequence& sequence, SharedPages& counted,
                                       CacheBytes& bytes) const {
  using Kind = HeadState::HeldPage::Kind;
  const auto leave_out = [&](PageEntry entry, Kind kind, std::int64_t& of_kind) {
    if (!device_->shared(entry) || counted.pages.emplace(0, kind, entry.room, entry.id).second) return;
    of_kind -= device_->entry_bytes(entry.room);
  };
  sequence.ledgers.front()->for_each_entry([&](int /*page*/, PageEntry entry) {
    const bool sealed = entry.room == kSealedRoom;
    leave_out(entry, sealed ? Kind::sealed : Kind::tail, sealed ? bytes.sealed : bytes.tail);
  });
  if (const PageEntry sink = sequence.sink.entry(); sink.held())
    leave_out(sink, Kind::protected_rows, bytes.sink);
  for (const EntryHold* sums : {&sequence.sums, &sequence.checkpoint_sums})
    if (sums->entry().held()) leave_out(sums->entry(), Kind::protected_rows, bytes.protected_tokens);
  for (const EntryHold& rows : sequence.protection.pages)
    leave_out(rows.entry(), Kind::protected_rows, bytes.protected_tokens);
  if (const PageEntry observers = sequence.protection.observers.entry(); observers.held())
    leave_out(observers, Kind::tail, bytes.tail);
}

namespace {

// What the library needs to write one page of all layers and to seal it, in the memory of the device.
struct SyntheticPage {
  std::int32_t tail_id = 0, sealed_id = 0;
  std::int32_t tail_page = 0, sealed_page = 0;
  std::int32_t seq[kPageTokens] = {}, token[kPageTokens] = {};
};

}  // namespace

Status Cache::fill_device(SequenceId id, int n_tokens, std::uint64_t seed) {
  if (n_tokens == 0) return {};
  const Geometry& g = plan_->geometry;
  PageDevice& device = *plan_->device;
  const PageLibrary& library = device.library();
  device.enter();
  Sequence filled = empty_sequence();
  const int n_sealed = page_counts(n_tokens, device_window(*plan_)).sealed;
  PageLedger& ledger = *filled.ledgers.front();
  const EntryHold tail(*device_, device_->take(kPageTokens));
  if (!tail.entry().held() || !ledger.take_all(n_tokens, n_sealed, /*first_page=*/0))
    return out_of_memory("filling a sequence");
  if (n_sealed > 0 && device_->has_sink()) {
    filled.sink = EntryHold(*device_, device_->take(kSinkRoom));
    if (!filled.sink.entry().held()) return out_of_memory("filling a sequence");
  }
  if (protects_by_score(*plan_) && !fill_protection(n_tokens, filled.protection))
    return out_of_memory("filling a sequence");
  const SyntheticRows protected_rows(*plan_, *device_, filled.protection);
  if (!protected_rows.enough_memory()) return out_of_memory("filling a sequence");
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  const std::size_t n_values = std::size_t{kPageTokens} * g.n_kv_heads * g.head_dim;
  std::vector<std::uint16_t> rows(2 * n_values);  // K, then V
  for (std::uint16_t& x : rows) x = bf16_from_float(normal(random));
  SyntheticPage page;
  page.tail_id = device_->tails().table_id(tail.entry().id);
  if (n_sealed > 0) page.sealed_id = device_->sealed().table_id(ledger.sealed(0).id);
  for (int t = 0; t < kPageTokens; ++t) page.token[t] = t;
  const DeviceMemory memory = allocate_on(device, rows.size() * sizeof rows[0] + sizeof page);
  if (memory == nullptr) return out_of_memory("filling a sequence");
  auto* on_device = reinterpret_cast<SyntheticPage*>(memory.get() + rows.size() * sizeof rows[0]);
  device.upload(memory.get(), rows.data(), rows.size() * sizeof rows[0]);
  device.upload(on_device, &page, sizeof page);
  for (int layer = 0; layer < g.n_layers; ++layer) {
    const LayerShape formats = layer_shape(*plan_, layer);
    const kvant_decode_shape shape = formats.of(1, *plan_);
    kvant_decode_layer of_layer{};
    of_layer.struct_size = sizeof of_layer;
    of_layer.tail = device_->tails().pages(layer);
    of_layer.tail.table = &on_device->tail_id;
    device_->add_sealed(of_layer, layer);
    of_layer.sealed.table = &on_device->sealed_id;
    of_layer.sink = device_->has_sink() ? plan_->layers[layer].sink : 0;
    plan_->device_constants->add_to(of_layer, layer);
    kvant_new_rows new_rows{};
    new_rows.struct_size = sizeof new_rows;
    new_rows.n_rows = kPageTokens;
    new_rows.seq = on_device->seq;
    new_rows.tail_token = on_device->token;
    new_rows.keys = memory.get();
    new_rows.values = memory.get() + n_values * sizeof rows[0];
    new_rows.key_row_stride = new_rows.value_row_stride = std::int64_t{g.n_kv_heads} * g.head_dim;
    new_rows.key_head_stride = new_rows.value_head_stride = g.head_dim;
    KVANT_RETURN_IF_ERROR(library_status(device, "filling a sequence",
                                         library.append(&shape, &of_layer, &new_rows, device.stream())));
    if (n_sealed == 0) continue;
    if (protects_by_score(*plan_, layer)) KVANT_RETURN_IF_ERROR(protected_rows.fill(shape, of_layer, layer));
    const kvant_seal_range range{sizeof range,
                                 &on_device->tail_page,
                                 &on_device->sealed_page,
                                 nullptr,
                                 1,
                                 0,
                                 plan_->device_constants->page_metrics(layer)};
    KVANT_RETURN_IF_ERROR(library_status(device, "sealing a page",
                                         library.seal_pages(&shape, &of_layer, &range, device.stream())));
    if (filled.sink.entry().held()) device_->keep_sink(tail.entry(), filled.sink.entry(), layer);
  }
  for (int i = 1; i < n_sealed; ++i) device_->copy(ledger.sealed(0), kPageTokens, ledger.sealed(i));
  for (int i = n_sealed; i < pages_for(n_tokens); ++i)
    device_->copy(tail.entry(), kPageTokens, ledger.tail(i));
  KVANT_RETURN_IF_ERROR(device.finish());
  std::swap(sequences_.at(id), filled);
  return {};
}

}  // namespace kvant
