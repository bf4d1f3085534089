// DevicePageStore: the bytes of a sequence's entries in the memory of a device (design section 6). Which
// entries a sequence holds is its ledger's business (page_ledger.h); what is done to pages, the library's.
//
// An entry is one run of bytes (device_layout.h): sealed, of the tail with room for a whole page, or of the
// sink. Runs come from slabs that stay where they are, so that page tables stay right as the store grows.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <vector>

#include "cache/device_layout.h"
#include "cache/device_protection.h"
#include "cache/memory_budget.h"
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

// Entries of one kind.
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

class DevicePageStore final : public EntryStore {
 public:
  // The plan's device keeps the pages. Plan and budget outlive the store.
  DevicePageStore(const Plan& plan, MemoryBudget& budget);

  // room: kSealedRoom, kPageTokens, or one of those above.
  PageEntry take(int room) override;
  void retain(PageEntry entry) override { table(entry.room).retain(entry.id); }
  void release(PageEntry entry) noexcept override { table(entry.room).release(entry.id); }
  bool shared(PageEntry entry) const override { return table(entry.room).shared(entry.id); }
  bool copy(PageEntry from, int n, PageEntry to) override;

  // Gives back what no entry needs (DeviceEntryTable::shrink). Whether there was any.
  bool shrink() noexcept;

  bool has_sink() const { return has_sink_; }
  std::int64_t entry_bytes(int room) const { return static_cast<std::int64_t>(table(room).layout().bytes); }
  std::int64_t bytes_in_use() const;

  DeviceEntryTable& sealed() { return sealed_; }
  DeviceEntryTable& tails() { return tails_; }
  DeviceEntryTable& sinks() { return sinks_; }
  DeviceEntryTable& sums() { return sums_; }
  DeviceEntryTable& protected_rows() { return protected_; }
  DeviceEntryTable& observers() { return observers_; }

  // Where a layer's sealed pages lie, with tables that the caller fills. As long as the store.
  void add_sealed(kvant_decode_layer& at_layer, int layer) const;

  // The sums of a correction that has summed up nothing.
  void clear_sums(PageEntry sums);

  // Keeps a layer's first tokens, which lie in the tail's entry, in the sink's.
  void keep_sink(PageEntry tail, PageEntry sink, int layer);
  // The bytes of an entry, in host memory and back: layout(entry.room).bytes. An error: the device has
  // failed.
  Status download(PageEntry entry, std::byte* to);
  // Of one head alone, of each entry in turn: the bytes of its key page, then of its value page. They are put
  // behind what was gathered since the last download, for which the host waits once; returns where they begin
  // in it. An error: the device has failed, or has no memory for them.
  Result<std::size_t> gather_head(std::span<const PageEntry> entries, int layer, int kv_head);
  Status download_gathered(std::vector<std::byte>& to);
  void upload(const std::byte* from, PageEntry entry);
  const EntryLayout& layout(int room) const { return table(room).layout(); }

  // Decodes a sequence's sealed page `page` of all layers into a tail's entry, with the sink's tokens and
  // those that scores protect as they are kept. An error: memory is exhausted, or the device has failed.
  Status reopen(int page, PageEntry sealed, PageEntry sink, const DeviceProtection& protection,
                PageEntry tail);

 private:
  std::array<DeviceEntryTable*, 6> tables() {
    return {&sealed_, &tails_, &sinks_, &sums_, &protected_, &observers_};
  }
  std::array<const DeviceEntryTable*, 6> tables() const {
    return {&sealed_, &tails_, &sinks_, &sums_, &protected_, &observers_};
  }
  // In the order of tables().
  static int index_of(int room) {
    constexpr int kOwnRooms[] = {kSealedRoom, kPageTokens,    kSinkRoom,
                                 kSumsRoom,   kProtectedRoom, kObserversRoom};
    return static_cast<int>(std::find(std::begin(kOwnRooms), std::end(kOwnRooms), room) -
                            std::begin(kOwnRooms));
  }
  DeviceEntryTable& table(int room) { return *tables()[index_of(room)]; }
  const DeviceEntryTable& table(int room) const { return *tables()[index_of(room)]; }

  const Plan& plan_;
  PageDevice& device_;
  bool has_sink_;
  DeviceEntryTable sealed_, tails_, sinks_, sums_, protected_, observers_;
  Status make_room_to_gather(std::size_t bytes);

  DeviceMemory gathered_{nullptr, {nullptr}};
  std::size_t gathered_room_ = 0, gathered_bytes_ = 0;
};

}  // namespace kvant
