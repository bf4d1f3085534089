#include "cache/device_page_store.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "cache/device_constants.h"

namespace kvant {
namespace {

// As many entries are asked for at once as there are, so that few calls are made; but not more bytes than
// these.
constexpr std::size_t kDeviceSlabBytes = std::size_t{32} << 20;
// Nor a larger part of a cache's memory than this.
constexpr std::size_t kSlabsOfBudget = 64;

}  // namespace

DeviceEntryTable::DeviceEntryTable(PageDevice& device, MemoryBudget& budget, EntryLayout layout)
    : device_(device), budget_(budget), layout_(std::move(layout)) {}

DeviceEntryTable::~DeviceEntryTable() {
  KVANT_CHECK(n_held_ == 0, "entries outlive their table");
  for (const Slab& slab : slabs_) device_.release(slab.memory);
}

// As many entries as there are, or fewer where memory is short.
bool DeviceEntryTable::grow() {
  std::size_t most = kDeviceSlabBytes;
  if (budget_.limit() > 0) most = std::min(most, static_cast<std::size_t>(budget_.limit()) / kSlabsOfBudget);
  std::size_t n = std::max<std::size_t>(1, std::min(data_.size() + 1, most / layout_.bytes));
  for (; n > 0; n /= 2) {
    if (grow_by(n)) return true;
  }
  return false;
}

// Numbers of slabs that were given back are used again, so that tables stay as long as the most entries that
// there have been.
bool DeviceEntryTable::grow_by(std::size_t n) {
  const std::size_t bytes = n * layout_.bytes;
  const auto unused = std::search_n(data_.begin(), data_.end(), n, static_cast<char*>(nullptr));
  const auto first = static_cast<std::size_t>(unused - data_.begin());
  const std::size_t size = std::max(data_.size(), first + n);
  slabs_.reserve(slabs_.size() + 1);
  data_.reserve(size);
  holders_.reserve(size);
  free_.reserve(size);
  if (!budget_.take(static_cast<std::int64_t>(bytes))) return false;
  auto* memory = static_cast<char*>(device_.allocate(bytes));
  // Numbers in page tables have 32 bits.
  constexpr auto kReach =
      std::ptrdiff_t{std::numeric_limits<std::int32_t>::max()} * static_cast<std::ptrdiff_t>(kDeviceUnit);
  if (memory != nullptr && !slabs_.empty() &&
      std::abs(memory - base()) + static_cast<std::ptrdiff_t>(bytes) > kReach) {
    device_.release(memory);
    memory = nullptr;
  }
  if (memory == nullptr) {
    budget_.give_back(static_cast<std::int64_t>(bytes));
    return false;
  }
  slabs_.push_back({memory, static_cast<std::int32_t>(first), static_cast<std::int32_t>(n)});
  data_.resize(size);
  holders_.resize(size);
  for (std::size_t i = n; i-- > 0;) free_.push_back(static_cast<std::int32_t>(first + i));
  for (std::size_t i = 0; i < n; ++i) data_[first + i] = memory + i * layout_.bytes;
  return true;
}

bool DeviceEntryTable::shrink() noexcept {
  const auto is_idle = [&](const Slab& slab) {
    const auto first = holders_.begin() + slab.first;
    return slab.memory != base() && std::all_of(first, first + slab.n, [](int n) { return n == 0; });
  };
  const std::size_t before = slabs_.size();
  for (const Slab& slab : slabs_) {
    if (!is_idle(slab)) continue;
    std::erase_if(free_, [&](std::int32_t id) { return id >= slab.first && id < slab.first + slab.n; });
    device_.release(slab.memory);
    budget_.give_back(static_cast<std::int64_t>(slab.n * layout_.bytes));
    std::fill_n(data_.begin() + slab.first, slab.n, nullptr);
  }
  std::erase_if(slabs_, [&](const Slab& slab) { return data_[slab.first] == nullptr; });
  return slabs_.size() < before;
}

std::int32_t DeviceEntryTable::take() {
  if (free_.empty() && !grow()) return -1;
  const std::int32_t id = free_.back();
  free_.pop_back();
  holders_[id] = 1;
  ++n_held_;
  return id;
}

void DeviceEntryTable::release(std::int32_t id) noexcept {
  KVANT_CHECK(holders_[id] > 0, "released a free entry");
  if (--holders_[id] > 0) return;
  free_.push_back(id);
  --n_held_;
}

kvant_pages DeviceEntryTable::first_page(int layer) const {
  kvant_pages pages{};
  pages.pool = base() == nullptr ? nullptr : base() + layout_.layers[layer].offset;
  pages.page_stride = kDeviceUnit;
  return pages;
}

kvant_pages DeviceEntryTable::pages(int layer) const {
  const EntryLayout::Layer& of_layer = layout_.layers[layer];
  kvant_pages pages = first_page(layer);
  pages.side_offset = static_cast<std::int64_t>(of_layer.bytes(0, Side::key));
  pages.head_offset = pages.side_offset + static_cast<std::int64_t>(of_layer.bytes(0, Side::value));
  return pages;
}

DevicePageStore::DevicePageStore(const Plan& plan, MemoryBudget& budget)
    : plan_(plan),
      device_(*plan.device),
      has_sink_(device_sink(plan) > 0),
      sealed_(device_, budget, sealed_layout(plan, device_.library())),
      tails_(device_, budget, plain_layout(plan, kPageTokens)),
      sinks_(device_, budget, sink_layout(plan)),
      sums_(device_, budget, correction_layout(plan)),
      protected_(device_, budget, protected_layout(plan)),
      observers_(device_, budget, observer_layout(plan)) {}

PageEntry DevicePageStore::take(int room) {
  DeviceEntryTable& wanted = table(room);
  std::int32_t id = wanted.take();
  if (id < 0) {  // what entries of other kinds have left
    bool any = false;
    for (DeviceEntryTable* other : tables()) any = (other != &wanted && other->shrink()) || any;
    if (any) id = wanted.take();
  }
  return id < 0 ? PageEntry{} : PageEntry{id, room};
}

bool DevicePageStore::shrink() noexcept {
  bool any = false;
  for (DeviceEntryTable* table : tables()) any = table->shrink() || any;
  return any;
}

Status DevicePageStore::download(PageEntry entry, std::byte* to) {
  device_.enter();
  device_.download(to, table(entry.room).data(entry.id), layout(entry.room).bytes);
  return device_.finish();
}

Status DevicePageStore::make_room_to_gather(std::size_t bytes) {
  if (gathered_bytes_ + bytes <= gathered_room_) return {};
  const std::size_t room = 2 * (gathered_bytes_ + bytes);
  DeviceMemory larger = allocate_on(device_, room);
  if (larger == nullptr) return shortage("out of memory on {}: no room to look at pages", device_.name());
  if (gathered_bytes_ > 0) device_.copy(larger.get(), gathered_.get(), gathered_bytes_);
  KVANT_RETURN_IF_ERROR(device_.finish());
  gathered_ = std::move(larger);
  gathered_room_ = room;
  return {};
}

Result<std::size_t> DevicePageStore::gather_head(std::span<const PageEntry> entries, int layer, int kv_head) {
  const auto bytes_of = [&](PageEntry entry) {
    const EntryLayout::Layer& of_layer = layout(entry.room).layers[layer];
    return of_layer.bytes(kv_head, Side::key) + of_layer.bytes(kv_head, Side::value);
  };
  std::size_t bytes = 0;
  for (const PageEntry entry : entries) bytes += bytes_of(entry);
  device_.enter();
  KVANT_RETURN_IF_ERROR(make_room_to_gather(bytes));
  const std::size_t first = gathered_bytes_;
  for (const PageEntry entry : entries) {
    const std::size_t place = layout(entry.room).layers[layer].place(kv_head, Side::key);
    device_.copy(gathered_.get() + gathered_bytes_, table(entry.room).data(entry.id) + place,
                 bytes_of(entry));
    gathered_bytes_ += bytes_of(entry);
  }
  return first;
}

Status DevicePageStore::download_gathered(std::vector<std::byte>& to) {
  to.resize(gathered_bytes_);
  device_.enter();
  if (gathered_bytes_ > 0) device_.download(to.data(), gathered_.get(), gathered_bytes_);
  gathered_bytes_ = 0;
  return device_.finish();
}

void DevicePageStore::upload(const std::byte* from, PageEntry entry) {
  device_.enter();
  device_.upload(table(entry.room).data(entry.id), from, layout(entry.room).bytes);
}

bool DevicePageStore::copy(PageEntry from, int /*n*/, PageEntry to) {
  device_.enter();
  device_.copy(table(to.room).data(to.id), table(from.room).data(from.id), table(to.room).layout().bytes);
  return true;
}

std::int64_t DevicePageStore::bytes_in_use() const {
  std::int64_t bytes = 0;
  for (const DeviceEntryTable* table : tables())
    bytes += table->n_held() * static_cast<std::int64_t>(table->layout().bytes);
  return bytes;
}

void DevicePageStore::add_sealed(kvant_decode_layer& at_layer, int layer) const {
  at_layer.sealed = sealed_.first_page(layer);
  at_layer.sealed_offsets = sealed_.layout().layers[layer].page_offsets.data();
}

void DevicePageStore::keep_sink(PageEntry tail, PageEntry sink, int layer) {
  const EntryLayout::Layer &from = tails_.layout().layers[layer], &to = sinks_.layout().layers[layer];
  const std::size_t n_pages = std::size_t{2} * plan_.geometry.n_kv_heads,  // all of a kind are equally large
      from_bytes = from.bytes(0, Side::key), to_bytes = to.bytes(0, Side::key);
  device_.copy_rows(sinks_.data(sink.id) + to.offset, to_bytes, tails_.data(tail.id) + from.offset,
                    from_bytes, to_bytes, n_pages);
}

void DevicePageStore::clear_sums(PageEntry sums) {
  device_.enter();
  const std::size_t bytes = sums_.layout().bytes;
  device_.clear_rows(sums_.data(sums.id), bytes, bytes, 1);
}

Status DevicePageStore::reopen(int page, PageEntry sealed, PageEntry sink, const DeviceProtection& protection,
                               PageEntry tail) {
  const Geometry& g = plan_.geometry;
  device_.enter();
  // One page as rows [token][head][channel] of both sides, and tables, lengths and numbers of tokens beside
  // them. Masks of the pages before say which protected rows are this one's, so it has its own number.
  const std::size_t side_bytes = std::size_t{2} * kPageTokens * g.n_kv_heads * g.head_dim;
  const int n_pages = page + 1;
  struct Numbers {
    std::int32_t tail_id, n_sealed, seq[kPageTokens], token[kPageTokens];
  } numbers{tails_.table_id(tail.id), n_pages, {}, {}};
  for (int t = 0; t < kPageTokens; ++t) numbers.token[t] = t;
  std::vector<TokenMask> masks;  // [n_layers][n_kv_heads][n_pages]
  if (protection.tokens != nullptr) {
    for (const ProtectedTokens::Head& head : protection.tokens->heads) {
      for (int i = 0; i < n_pages; ++i) masks.push_back(ProtectedTokens::mask(head, i));
    }
  }
  const std::vector<std::int32_t> sealed_ids(n_pages, sealed_.table_id(sealed.id));
  std::vector<std::int32_t> protected_ids{sink.held() ? sinks_.table_id(sink.id) : 0};
  if (!protection.pages.empty()) protected_ids.clear();
  for (const EntryHold& rows : protection.pages)
    protected_ids.push_back(protected_.table_id(rows.entry().id));
  const std::size_t mask_bytes = masks.size() * sizeof masks[0],
                    sealed_bytes = sealed_ids.size() * sizeof sealed_ids[0],
                    protected_bytes = protected_ids.size() * sizeof protected_ids[0];
  const DeviceMemory memory =
      allocate_on(device_, 2 * side_bytes + sizeof numbers + mask_bytes + sealed_bytes + protected_bytes);
  if (memory == nullptr) {
    return shortage("out of memory on {}: no room to decode a page of all layers; use fewer tokens",
                    device_.name());
  }
  char* const masks_at = memory.get() + 2 * side_bytes;
  auto* const on_device = reinterpret_cast<Numbers*>(masks_at + mask_bytes);
  auto* const sealed_at = reinterpret_cast<std::int32_t*>(on_device + 1);
  std::int32_t* const protected_at = sealed_at + sealed_ids.size();
  if (!masks.empty()) device_.upload(masks_at, masks.data(), mask_bytes);
  device_.upload(on_device, &numbers, sizeof numbers);
  device_.upload(sealed_at, sealed_ids.data(), sealed_bytes);
  device_.upload(protected_at, protected_ids.data(), protected_bytes);
  for (int layer = 0; layer < g.n_layers; ++layer) {
    const LayerShape formats = layer_shape(plan_, layer);
    const kvant_decode_shape shape = formats.of(1, plan_);
    kvant_decode_lengths lengths{};
    lengths.struct_size = sizeof lengths;
    lengths.sealed_pages = &on_device->n_sealed;
    kvant_decode_layer of_layer{};
    of_layer.struct_size = sizeof of_layer;
    add_sealed(of_layer, layer);
    of_layer.sealed.table = sealed_at;
    of_layer.tail = tails_.pages(layer);
    of_layer.tail.table = &on_device->tail_id;
    of_layer.protected_pages = protection.pages.empty() ? sinks_.pages(layer) : protected_.pages(layer);
    of_layer.protected_pages.table = protected_at;
    of_layer.sink = sink.held() ? plan_.layers[layer].sink : 0;
    if (!protection.pages.empty() && protects_by_score(plan_, layer)) {
      of_layer.masks = reinterpret_cast<const std::uint32_t*>(masks_at) +
                       std::ptrdiff_t{4} * n_pages * g.head_index(layer, 0);
      of_layer.mask_head_stride = n_pages;
    }
    plan_.device_constants->add_to(of_layer, layer);
    kvant_dequantization rows{};
    rows.struct_size = sizeof rows;
    rows.n_seqs = 1;
    rows.first_page = page;
    rows.n_pages = 1;
    rows.n_heads = g.n_kv_heads;
    rows.keys = memory.get();
    rows.values = memory.get() + side_bytes;
    rows.token_stride = std::int64_t{g.n_kv_heads} * g.head_dim;
    rows.head_stride = g.head_dim;
    rows.seq_stride = rows.token_stride * kPageTokens;
    KVANT_RETURN_IF_ERROR(
        library_status(device_, "decoding a page",
                       device_.library().dequantize(&shape, &lengths, &of_layer, &rows, device_.stream())));
    kvant_new_rows back{};
    back.struct_size = sizeof back;
    back.n_rows = kPageTokens;
    back.seq = on_device->seq;
    back.tail_token = on_device->token;
    back.keys = rows.keys;
    back.values = rows.values;
    back.key_row_stride = back.value_row_stride = rows.token_stride;
    back.key_head_stride = back.value_head_stride = rows.head_stride;
    KVANT_RETURN_IF_ERROR(
        library_status(device_, "keeping a decoded page",
                       device_.library().append(&shape, &of_layer, &back, device_.stream())));
  }
  return device_.finish();
}

}  // namespace kvant
