// DeviceEntryStore: entries in the memory of a device of several kinds, which their rooms tell apart.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "cache/device_layout.h"
#include "cache/memory_budget.h"
#include "cache/page_ledger.h"

namespace kvant {

// Entries of one kind in the memory of a device, each one run of bytes (device_layout.h). Runs come from
// slabs that stay where they are, because page tables name places in them while the table grows.
class DeviceEntryTable {
 public:
  // Both outlive the table.
  DeviceEntryTable(PageDevice& device, MemoryBudget& budget, EntryLayout layout);
  ~DeviceEntryTable();
  DeviceEntryTable(const DeviceEntryTable&) = delete;
  DeviceEntryTable& operator=(const DeviceEntryTable&) = delete;

  const EntryLayout& layout() const { return layout_; }
  // -1 where memory is exhausted; may throw std::bad_alloc, and has then taken nothing.
  std::int32_t take();
  void retain(std::int32_t id) { ++holders_[id]; }
  void release(std::int32_t id) noexcept;
  bool shared(std::int32_t id) const { return holders_[id] > 1; }
  int n_held() const { return n_held_; }
  // Gives slabs back in which no entry is held, but the first, which page tables count from. Waits for the
  // device. Whether there were any.
  bool shrink() noexcept;

  char* data(std::int32_t id) const { return data_[id]; }
  // The number of an entry in page tables: its place in units of kDeviceUnit from base().
  std::int32_t table_id(std::int32_t id) const {
    return static_cast<std::int32_t>((data_[id] - base()) / static_cast<std::ptrdiff_t>(kDeviceUnit));
  }
  // Where page tables count from; null as long as there are no entries.
  char* base() const { return slabs_.empty() ? nullptr : slabs_.front().memory; }
  // The pages of a layer whose heads are alike as the library addresses them, with tables that the caller
  // fills.
  kvant_pages pages(int layer) const;
  // Where the library is to count a layer's pages from: without what heads and sides add.
  kvant_pages first_page(int layer) const;

 private:
  // An entry range [first, first + n) of one allocation.
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
  std::vector<char*> data_;            // [entries]; null: its slab was given back
  std::vector<std::int32_t> holders_;  // [entries]; 0: free
  std::vector<std::int32_t> free_;
  int n_held_ = 0;
};

// The room of an entry of the sink, however many tokens that has: no number of tokens, so that a sink of a
// whole page isn't taken for a page of the tail.
inline constexpr int kSinkRoom = -1;

// And the room of an entry of a correction's sums.
inline constexpr int kSumsRoom = -2;

// Entries of rows that scores protect, and of queries that observe.
inline constexpr int kProtectedRoom = -3;
inline constexpr int kObserversRoom = -4;

class DeviceEntryStore final : public EntryStore {
 public:
  struct Kind {
    int room = 0;
    EntryLayout layout;
  };
  // make_room: asked where memory is exhausted, whether anything else has given some back. Device and budget
  // outlive the store.
  DeviceEntryStore(PageDevice& device, MemoryBudget& budget, std::vector<Kind> kinds,
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
  std::int64_t bytes_in_use() const;

  // Gives back what no entry needs (DeviceEntryTable::shrink). Whether there was any.
  bool shrink() noexcept;

  // The bytes of an entry, in host memory and back: layout(entry.room).bytes. An error: the device has
  // failed.
  Status download(PageEntry entry, std::byte* to);
  void upload(const std::byte* from, PageEntry entry);

 private:
  std::size_t index_of(int room) const;

  struct Table {
    int room;
    std::unique_ptr<DeviceEntryTable> table;
  };
  PageDevice& device_;
  std::vector<Table> kinds_;
  std::function<bool()> make_room_;
};

}  // namespace kvant
