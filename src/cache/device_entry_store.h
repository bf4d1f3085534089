// DeviceEntryStore keeps entries of several kinds in the memory of a device. The room of an entry tells its
// kind.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "cache/device_layout.h"
#include "cache/memory_budget.h"
#include "cache/page_ledger.h"

namespace kvant {

// Holds entries of one kind in the memory of a device, each as one run of bytes (device_layout.h). Entries
// lie in slabs that never move, because page tables name places in the slabs while the table grows.
class DeviceEntryTable {
 public:
  // Device and budget outlive the table.
  DeviceEntryTable(PageDevice& device, MemoryBudget& budget, EntryLayout layout);
  ~DeviceEntryTable();
  DeviceEntryTable(const DeviceEntryTable&) = delete;
  DeviceEntryTable& operator=(const DeviceEntryTable&) = delete;

  const EntryLayout& layout() const { return layout_; }
  // Returns -1 if memory is exhausted. take() may throw std::bad_alloc, and has then taken nothing.
  std::int32_t take();
  void retain(std::int32_t id) { ++holders_[id]; }
  void release(std::int32_t id) noexcept;
  bool shared(std::int32_t id) const { return holders_[id] > 1; }
  int n_held() const { return n_held_; }
  // Gives slabs without held entries back and returns whether there were any. The first slab stays, because
  // page tables count from it. The call waits for the device.
  bool shrink() noexcept;

  char* data(std::int32_t id) const { return data_[id]; }
  // Returns the number of an entry in page tables, which is its place in units of kDeviceUnit from base().
  std::int32_t table_id(std::int32_t id) const {
    return static_cast<std::int32_t>((data_[id] - base()) / static_cast<std::ptrdiff_t>(kDeviceUnit));
  }
  // Page tables count from base(). The pointer is null while there are no entries.
  char* base() const { return slabs_.empty() ? nullptr : slabs_.front().memory; }
  // Describes the pages of a layer whose heads are alike, as the library addresses them. The caller fills in
  // the tables.
  kvant_pages pages(int layer) const;
  // Describes where the library counts a layer's pages from, without the offsets of heads and sides.
  kvant_pages first_page(int layer) const;

 private:
  // Describes the entries [first, first + n), which are one allocation.
  struct Slab {
    char* memory = nullptr;
    std::int32_t first = 0, n = 0;
  };
  bool grow();
  bool grow_by(std::size_t n);

  PageDevice& device_;
  MemoryBudget& budget_;
  EntryLayout layout_;
  std::vector<Slab> slabs_;
  std::vector<char*> data_;            // [entries]; null if the slab was given back
  std::vector<std::int32_t> holders_;  // [entries]; 0 if free
  std::vector<std::int32_t> free_;
  int n_held_ = 0;
};

// Entries of a correction's sums and of queries that observe have these values as their room.
inline constexpr int kSumsRoom = -2;
inline constexpr int kObserversRoom = -3;

class DeviceEntryStore final : public PartStore {
 public:
  struct Kind {
    int room = 0;
    EntryLayout layout;
  };
  // The store calls make_room if memory is exhausted. make_room returns whether anything else has given
  // memory back. Plan, device and budget outlive the store.
  DeviceEntryStore(const Plan& plan, PageDevice& device, MemoryBudget& budget, std::vector<Kind> kinds,
                   std::function<bool()> make_room);

  PageEntry take(int room) override;
  void retain(PageEntry entry) override { table(entry.room).retain(entry.id); }
  void release(PageEntry entry) noexcept override { table(entry.room).release(entry.id); }
  bool shared(PageEntry entry) const override { return table(entry.room).shared(entry.id); }
  bool copy(PageEntry from, int n, PageEntry to) override;

  DeviceEntryTable& table(int room) { return *kinds_[index_of(room)].table; }
  const DeviceEntryTable& table(int room) const { return *kinds_[index_of(room)].table; }
  const EntryLayout& layout(int room) const { return table(room).layout(); }
  std::int64_t entry_bytes(int room) const { return static_cast<std::int64_t>(layout(room).bytes); }
  std::int64_t bytes_of(PageEntry entry) const override { return entry_bytes(entry.room); }
  std::int64_t side_bytes(PageEntry entry, int layer, int kv_head, Side side) const override {
    return static_cast<std::int64_t>(layout(entry.room).layers[layer].bytes(kv_head, side));
  }
  Status save(PageEntry entry, std::span<const PagePart> parts, std::byte* image) const override;
  bool load(const std::byte* image, std::span<const PagePart> parts, PageEntry entry) override;
  std::int64_t bytes_in_use() const;

  // Gives back what no entry needs (DeviceEntryTable::shrink) and returns whether there was any.
  bool shrink() noexcept;

  // Transfer the bytes of an entry to host memory and back. The number of bytes is layout(entry.room).bytes.
  // An error says that the device has failed.
  Status download(PageEntry entry, std::byte* to) const;
  void upload(const std::byte* from, PageEntry entry);

 private:
  std::size_t index_of(int room) const;
  // Returns the format of a part of an entry that holds pages.
  const Format& format_of(PageEntry entry, const PagePart& part) const {
    const HeadPlan& head = plan_.head(part.layer, part.kv_head);
    return entry.room == kSealedRoom ? *head.side(part.side).sealed : *plan_.tail;
  }

  struct Table {
    int room;
    std::unique_ptr<DeviceEntryTable> table;
  };
  const Plan& plan_;
  PageDevice& device_;
  std::vector<Table> kinds_;
  std::function<bool()> make_room_;
};

// Converts a page of a device to canonical bytes. An entry of a few rows is converted as the beginning of a
// page.
void page_to_host(const PageDevice& device, const Format& format, Side side, int head_dim,
                  std::span<const std::byte> page, std::byte* canonical);

}  // namespace kvant
