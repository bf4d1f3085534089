// EntryTable holds reference-counted entries of one kind with a fixed number of parts. A part is one page of
// a pool: one side of one KV head of one layer. Each part of an entry is taken and dropped on its own.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/page_pool.h"

namespace kvant {

// The table is not thread-safe, except data() and has(). Threads may use held entries while nobody takes,
// holds, drops or releases.
class EntryTable {
 public:
  // `pools` has the pool of each part. The pools outlive the table.
  explicit EntryTable(std::vector<PagePool*> pools);
  ~EntryTable();
  EntryTable(const EntryTable&) = delete;
  EntryTable& operator=(const EntryTable&) = delete;

  int n_parts() const { return static_cast<int>(pools_.size()); }

  // Returns an entry that is held once and has no parts. take() may throw std::bad_alloc, and has then taken
  // nothing.
  std::int32_t take();
  void retain(std::int32_t entry) { ++holders_[entry]; }
  void release(std::int32_t entry) noexcept;  // The last release() of an entry frees its parts.
  bool shared(std::int32_t entry) const { return holders_[entry] > 1; }

  // Gives the entry a page for this part, unless it has one. Returns false or throws std::bad_alloc if memory
  // is exhausted.
  bool hold(std::int32_t entry, int part);
  void drop(std::int32_t entry,
            int part) noexcept;  // Takes the page back, if the entry has one for this part.
  bool has(std::int32_t entry, int part) const { return pages_[part][entry] != kNoPage; }
  std::byte* data(std::int32_t entry, int part) const { return pools_[part]->data(pages_[part][entry]); }
  std::size_t part_bytes(int part) const { return pools_[part]->page_bytes(); }
  std::int64_t bytes_of(std::int32_t entry) const;  // the bytes of all pages of the entry

 private:
  void grow();

  std::vector<PagePool*> pools_;  // [n_parts]
  std::vector<std::vector<PageId>>
      pages_;  // [n_parts][entries]: a head's pages lie side by side, as the head reads them
  std::vector<std::int32_t> holders_;  // [entries]; 0 if free
  std::vector<std::int32_t> free_;
};

}  // namespace kvant
