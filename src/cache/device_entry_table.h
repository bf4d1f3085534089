// DeviceEntryTable: entries of one kind in the memory of a device, each one run of bytes (device_layout.h).
// Runs come from slabs that stay where they are, so that page tables stay right as the table grows.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/device_layout.h"
#include "cache/memory_budget.h"

namespace kvant {

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

}  // namespace kvant
