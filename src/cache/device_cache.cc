// A cache whose pages lie on a device: what is otherwise the business of heads (head_state.h) is done for all
// of them at once, by the ledger alone, and by the library.
#include <algorithm>
#include <random>

#include "base/check.h"
#include "base/float16.h"
#include "cache/cache.h"
#include "cache/device_constants.h"
#include "cache/page_counts.h"
#include "cache/synthetic_weights.h"

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

const DeviceProtection& Step::protection(int slice) const {
  return cache_.sequences_.at(slices_[slice].sequence).protection;
}

const DeviceProtection& Step::next_protection(int slice) const {
  return cache_.sequences_.at(slices_[slice].sequence).next_protection;
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

// Entries for all that a sequence of these lengths may have. False where memory is exhausted.
bool Cache::take_protection(int n_tokens, int n_sealed, DeviceProtection& protection) {
  protection.tokens = std::make_shared<ProtectedTokens>();
  protection.tokens->heads.resize(static_cast<std::size_t>(plan_->geometry.n_all_kv_heads()));
  for (int i = 0; i < protected_pages(*plan_, n_sealed); ++i) {
    protection.pages.emplace_back(*device_, device_->take(kProtectedRoom));
    if (!protection.pages.back().entry().held()) return false;
  }
  if (open_observers(n_tokens) == 0) return true;
  protection.observers = EntryHold(*device_, device_->take(kObserversRoom));
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
    if (is_there && !(is_written && device_->shared(now.pages[i].entry()))) {
      next.pages.push_back(now.pages[i].share());
      continue;
    }
    next.pages.emplace_back(*device_, device_->take(kProtectedRoom));
    if (!next.pages.back().entry().held()) return false;
    if (is_there) device_->copy(now.pages[i].entry(), kPageTokens, next.pages.back().entry());
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
  if (goes_on && !device_->shared(now.observers.entry())) {
    next.observers = now.observers.share();
    return true;
  }
  next.observers = EntryHold(*device_, device_->take(kObserversRoom));
  if (!next.observers.entry().held()) return false;
  if (goes_on) device_->copy(now.observers.entry(), kObservers, next.observers.entry());
  return true;
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

namespace {

// Entries keep no rows behind the last one, and observers of an ended page are gone.
void truncate_protection(DeviceProtection& protection, int n_tokens, int n_sealed) {
  if (protection.tokens == nullptr) return;
  auto left = std::make_shared<ProtectedTokens>(*protection.tokens);
  left->truncate(n_tokens, n_sealed);
  protection.pages.resize(std::min<std::size_t>(protection.pages.size(), pages_for(left->most_rows())));
  protection.tokens = std::move(left);
  const int first = protection.first_observer;
  if (first >= 0 && first < n_tokens && first / kPageTokens == n_tokens / kPageTokens) return;
  protection.observers.reset();
  protection.first_observer = -1;
}

// The sink's part of protected rows counts as the sink's; scores and lists are kept by the host.
void add_protection(const Plan& plan, const DevicePageStore& store, const DeviceProtection& protection,
                    CacheBytes& bytes) {
  const Geometry& g = plan.geometry;
  std::int64_t n_rows = 0, n_sink = 0;
  for (int layer = 0; layer < g.n_layers; ++layer) {
    for (int h = 0; h < g.n_kv_heads; ++h) {
      const ProtectedTokens::Head& head = protection.tokens->heads[g.head_index(layer, h)];
      const auto n = static_cast<int>(head.tokens.size());
      n_rows += n;
      n_sink += std::min(plan.layers[layer].sink, n);
      int n_masked = 0;
      for (int i = 0; i < n; ++i)
        n_masked += i == 0 || head.tokens[i] / kPageTokens != head.tokens[i - 1] / kPageTokens ? 1 : 0;
      bytes.protected_tokens += HeadState::list_bytes(n, n_masked) + head.scores.bytes();
    }
  }
  const std::int64_t in_rows =
      static_cast<std::int64_t>(protection.pages.size()) * store.entry_bytes(kProtectedRoom);
  const std::int64_t of_sink = n_rows > 0 ? in_rows * n_sink / n_rows : 0;
  bytes.sink += of_sink;
  bytes.protected_tokens += in_rows - of_sink;
  if (protection.observers.entry().held()) bytes.tail += store.entry_bytes(kObserversRoom);
}

}  // namespace

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
  truncate_protection(copy.protection, n_tokens, copy.ledgers.front()->n_sealed());
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
  if (sequence.protection.tokens != nullptr) add_protection(*plan_, *device_, sequence.protection, bytes);
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

// The protected rows of such a sequence, all out of the one page of its tail, in every head the same ones.
class SyntheticRows {
 public:
  SyntheticRows(const Plan& plan, DevicePageStore& store, const DeviceProtection& protection)
      : store_(store), device_(*plan.device), memory_(nullptr, {&device_}) {
    if (protection.pages.empty()) return;
    const Geometry& g = plan.geometry;
    int layer = 0;
    while (!protects_by_score(plan, layer)) ++layer;
    std::vector<std::int32_t> heads, from, to;
    for (int h = 0; h < g.n_kv_heads; ++h) {
      const std::vector<int>& tokens = protection.tokens->heads[g.head_index(layer, h)].tokens;
      for (int i = 0; i < static_cast<int>(tokens.size()); ++i) {
        heads.push_back(h);
        from.push_back(tokens[i] % kPageTokens);
        to.push_back(i);
      }
    }
    n_rows_ = static_cast<int>(heads.size());
    if (n_rows_ == 0) return;
    std::vector<std::int32_t> numbers(heads.size());  // of the sequence: 0
    for (const auto* list : {&heads, &from, &to}) numbers.insert(numbers.end(), list->begin(), list->end());
    for (const EntryHold& rows : protection.pages)
      numbers.push_back(store.protected_rows().table_id(rows.entry().id));
    const std::size_t bytes = numbers.size() * sizeof numbers[0];
    memory_ = allocate_on(device_, bytes);
    if (memory_ != nullptr) device_.upload(memory_.get(), numbers.data(), bytes);
  }

  bool enough_memory() const { return n_rows_ == 0 || memory_ != nullptr; }

  Status fill(const kvant_decode_shape& shape, kvant_decode_layer of_layer, int layer) const {
    if (n_rows_ == 0) return {};
    const auto* numbers = reinterpret_cast<const std::int32_t*>(memory_.get());
    of_layer.protected_pages = store_.protected_rows().pages(layer);
    of_layer.protected_pages.table = numbers + std::ptrdiff_t{4} * n_rows_;
    const kvant_protected_rows rows{sizeof rows,
                                    n_rows_,
                                    0,
                                    numbers,
                                    numbers + n_rows_,
                                    numbers + std::ptrdiff_t{2} * n_rows_,
                                    numbers + std::ptrdiff_t{3} * n_rows_};
    return library_status(device_, "keeping protected tokens",
                          device_.library().protect(&shape, &of_layer, &rows, device_.stream()));
  }

 private:
  DevicePageStore& store_;
  PageDevice& device_;
  DeviceMemory memory_;  // [4][n_rows_], and the table of protected pages
  int n_rows_ = 0;
};

}  // namespace

// False where memory is exhausted.
bool Cache::fill_protection(int n_tokens, DeviceProtection& protection) {
  int layer = 0;
  while (!protects_by_score(*plan_, layer)) ++layer;
  ProtectedTokens::Head head;
  for (int end = kPageTokens, n_sealed = 0; end <= n_tokens; end += kPageTokens) {
    head.scores.end_page(end, end - 1, synthetic_weights(end));
    const int due = sealed_pages(end, device_window(*plan_));
    ProtectedTokens::seal(head, plan_->layers[layer], n_sealed, due);
    n_sealed = due;
  }
  protection.tokens = std::make_shared<ProtectedTokens>();
  for (int i = 0; i < plan_->geometry.n_layers; ++i) {
    for (int h = 0; h < plan_->geometry.n_kv_heads; ++h)
      protection.tokens->heads.push_back(protects_by_score(*plan_, i) ? head : ProtectedTokens::Head{});
  }
  for (int i = 0; i < pages_for(protection.tokens->most_rows()); ++i) {
    protection.pages.emplace_back(*device_, device_->take(kProtectedRoom));
    if (!protection.pages.back().entry().held()) return false;
  }
  return true;
}

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
    of_layer.sealed = device_->sealed().pages(layer);
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
    const kvant_seal_range range{sizeof range, &on_device->tail_page, &on_device->sealed_page, nullptr, 1};
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
