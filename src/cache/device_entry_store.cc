#include "cache/device_entry_store.h"

#include <utility>

#include "base/check.h"

namespace kvant {

DeviceEntryStore::DeviceEntryStore(PageDevice& device, MemoryBudget& budget, std::vector<Kind> kinds,
                                   std::function<bool()> make_room)
    : device_(device), make_room_(std::move(make_room)) {
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

Status DeviceEntryStore::download(PageEntry entry, std::byte* to) {
  device_.enter();
  device_.download(to, table(entry.room).data(entry.id), layout(entry.room).bytes);
  return device_.finish();
}

void DeviceEntryStore::upload(const std::byte* from, PageEntry entry) {
  device_.enter();
  device_.upload(table(entry.room).data(entry.id), from, layout(entry.room).bytes);
}

}  // namespace kvant
