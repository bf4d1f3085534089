// EntryTable: reference-counted entries of one kind, each of so many parts. A part is one page of a pool: one
// side of one KV head of one layer. Parts of an entry come and go by themselves.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/page_pool.h"

namespace kvant {

// Not thread-safe, except data() and has(): threads may use entries that are held while nobody else takes,
// holds, drops or releases.
class EntryTable {
 public:
  // The pool of each part. They outlive the table.
  explicit EntryTable(std::vector<PagePool*> pools);
  ~EntryTable();
  EntryTable(const EntryTable&) = delete;
  EntryTable& operator=(const EntryTable&) = delete;

  int n_parts() const { return static_cast<int>(pools_.size()); }

  // An entry held once, without parts. May throw std::bad_alloc, and has then taken nothing.
  std::int32_t take();
  void retain(std::int32_t entry) { ++holders_[entry]; }
  void release(std::int32_t entry) noexcept;  // the last holder's frees its parts
  bool shared(std::int32_t entry) const { return holders_[entry] > 1; }

  // Gives the entry a page for this part, if it has none. False, or std::bad_alloc, where memory is
  // exhausted.
  bool hold(std::int32_t entry, int part);
  void drop(std::int32_t entry, int part) noexcept;  // takes it back, if it has one
  bool has(std::int32_t entry, int part) const { return pages_[part][entry] != kNoPage; }
  std::byte* data(std::int32_t entry, int part) const { return pools_[part]->data(pages_[part][entry]); }
  std::size_t part_bytes(int part) const { return pools_[part]->page_bytes(); }

 private:
  void grow();

  std::vector<PagePool*> pools_;  // [n_parts]
  std::vector<std::vector<PageId>>
      pages_;  // [n_parts][entries]: a head's pages lie side by side, as it reads them
  std::vector<std::int32_t> holders_;  // [entries]; 0: free
  std::vector<std::int32_t> free_;
};

}  // namespace kvant
