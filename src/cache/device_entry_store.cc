#include "cache/device_entry_store.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace kvant {

DeviceEntryStore::DeviceEntryStore(const Plan& plan, PageDevice& device, MemoryBudget& budget,
                                   std::vector<Kind> kinds, std::function<bool()> make_room)
    : plan_(plan), device_(device), make_room_(std::move(make_room)) {
  for (Kind& kind : kinds) {
    kinds_.push_back({kind.room, std::make_unique<DeviceEntryTable>(device, budget, std::move(kind.layout))});
  }
}

std::size_t DeviceEntryStore::index_of(int room) const {
  std::size_t i = 0;
  while (i < kinds_.size() && kinds_[i].room != room) ++i;
  KVANT_CHECK(i < kinds_.size(), "an entry of another store");
  return i;
}

PageEntry DeviceEntryStore::take(int room) {
  DeviceEntryTable& wanted = table(room);
  std::int32_t id = wanted.take();
  if (id < 0 && make_room_()) id = wanted.take();
  return id < 0 ? PageEntry{} : PageEntry{id, room};
}

bool DeviceEntryStore::copy(PageEntry from, int /*n*/, PageEntry to) {
  device_.enter();
  device_.copy(table(to.room).data(to.id), table(from.room).data(from.id), layout(to.room).bytes);
  return true;
}

std::int64_t DeviceEntryStore::bytes_in_use() const {
  std::int64_t bytes = 0;
  for (const Table& kind : kinds_) bytes += kind.table->n_held() * entry_bytes(kind.room);
  return bytes;
}

bool DeviceEntryStore::shrink() noexcept {
  bool any = false;
  for (const Table& kind : kinds_) any = kind.table->shrink() || any;
  return any;
}

Status DeviceEntryStore::download(PageEntry entry, std::byte* to) const {
  device_.enter();
  device_.download(to, table(entry.room).data(entry.id), layout(entry.room).bytes);
  return device_.finish();
}

void DeviceEntryStore::upload(const std::byte* from, PageEntry entry) {
  device_.enter();
  device_.upload(table(entry.room).data(entry.id), from, layout(entry.room).bytes);
}

void page_to_host(const PageDevice& device, const Format& format, Side side, int head_dim,
                  std::span<const std::byte> page, std::byte* canonical) {
  std::vector<std::byte> whole(std::max(page.size(), format.page_bytes(head_dim)));
  std::ranges::copy(page, whole.begin());
  device.page_to_host(format.name(), side, head_dim, whole.data(), canonical);
}

Status DeviceEntryStore::save(PageEntry entry, std::span<const PagePart> parts, std::byte* image) const {
  std::vector<std::byte> bytes(layout(entry.room).bytes), canonical;
  KVANT_RETURN_IF_ERROR(download(entry, bytes.data()));
  for (const PagePart& part : parts) {
    const EntryLayout::Layer& of_layer = layout(entry.room).layers[part.layer];
    const Format& format = format_of(entry, part);
    const int d = plan_.geometry.dim(part.layer);
    canonical.resize(format.page_bytes(d));
    page_to_host(device_, format, part.side, d,
                 std::span(bytes).subspan(of_layer.place(part.kv_head, part.side),
                                          of_layer.bytes(part.kv_head, part.side)),
                 canonical.data());
    std::copy_n(canonical.begin(), part.bytes, image + part.place);
  }
  return {};
}

bool DeviceEntryStore::load(const std::byte* image, std::span<const PagePart> parts, PageEntry entry) {
  std::vector<std::byte> bytes(layout(entry.room).bytes), canonical, page;
  for (const PagePart& part : parts) {
    const EntryLayout::Layer& of_layer = layout(entry.room).layers[part.layer];
    const Format& format = format_of(entry, part);
    const int d = plan_.geometry.dim(part.layer);
    const std::size_t n_bytes = of_layer.bytes(part.kv_head, part.side);
    canonical.assign(format.page_bytes(d), std::byte{});
    std::copy_n(image + part.place, part.bytes, canonical.begin());
    page.resize(std::max(n_bytes, canonical.size()));
    device_.page_from_host(format.name(), part.side, d, canonical.data(), page.data());
    std::copy_n(page.begin(), n_bytes, bytes.data() + of_layer.place(part.kv_head, part.side));
  }
  upload(bytes.data(), entry);
  return true;
}

namespace {

// A table asks for about as many new entries as it has, because few calls are faster. A request
// for several entries is not larger than this.
constexpr std::size_t kDeviceSlabBytes = std::size_t{32} << 20;
// Such a request also takes at most 1 / kSlabsOfBudget of the cache's memory.
constexpr std::size_t kSlabsOfBudget = 64;

}  // namespace

DeviceEntryTable::DeviceEntryTable(PageDevice& device, MemoryBudget& budget, EntryLayout layout)
    : device_(device), budget_(budget), layout_(std::move(layout)) {}

DeviceEntryTable::~DeviceEntryTable() {
  KVANT_CHECK(n_held_ == 0, "entries outlive their table");
  for (const Slab& slab : slabs_) device_.release(slab.memory);
}

// Doubles the number of entries, or adds fewer if memory is short.
bool DeviceEntryTable::grow() {
  std::size_t most = kDeviceSlabBytes;
  if (budget_.limit() > 0) most = std::min(most, static_cast<std::size_t>(budget_.limit()) / kSlabsOfBudget);
  std::size_t n = std::max<std::size_t>(1, std::min(data_.size() + 1, most / layout_.bytes));
  for (; n > 0; n /= 2) {
    if (grow_by(n)) return true;
  }
  return false;
}

// Entries reuse the numbers of slabs that were given back. So the lists stay as short as the largest number
// of entries that ever existed.
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
  // Page tables hold 32-bit numbers, so all slabs must lie within the reach of such numbers.
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

}  // namespace kvant
