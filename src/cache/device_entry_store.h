// DeviceEntryStore: entries in the memory of a device of several kinds, which their rooms tell apart.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "cache/device_entry_table.h"
#include "cache/page_ledger.h"

namespace kvant {

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
