// PagePool holds pages of one byte size. Pages lie in slabs, and an empty slab goes back to the operating
// system.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "cache/memory_budget.h"
#include "cache/slab_memory.h"

namespace kvant {

using PageId = std::int32_t;
inline constexpr PageId kNoPage = -1;

// The pool is not thread-safe, except data(). Threads may use held pages while nobody allocates or releases.
class PagePool {
 public:
  // 0 < page_bytes <= kSlabBytes. Pages start at multiples of 64 bytes.
  PagePool(std::size_t page_bytes, SlabMemory& memory, MemoryBudget& budget);
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // Returns a page with undefined contents, or kNoPage if memory or the budget is exhausted.
  PageId allocate();
  void release(PageId page);

  std::byte* data(PageId page) const;
  std::size_t page_bytes() const { return page_bytes_; }
  std::int64_t pages_in_use() const { return pages_in_use_; }

 private:
  struct Slab {
    std::byte* memory = nullptr;
    int pages_in_use = 0;
  };
  bool add_slab();
  void drop_slab(int slab);

  std::size_t page_bytes_;
  std::size_t stride_;
  int pages_per_slab_;
  SlabMemory& memory_;
  MemoryBudget& budget_;
  std::vector<Slab> slabs_;
  std::vector<bool> held_;    // [slabs * pages_per_slab]
  std::vector<PageId> free_;  // May name pages of dropped slabs, which allocate() skips.
  std::int64_t pages_in_use_ = 0;
};

// Holds pools by the bytes of a page, over one memory and one budget.
class PagePools {
 public:
  // The budget outlives the pools.
  explicit PagePools(MemoryBudget& budget) : budget_(budget) {}

  PagePool* of(std::size_t page_bytes) {
    auto& pool = pools_[page_bytes];
    if (pool == nullptr) pool = std::make_unique<PagePool>(page_bytes, memory_, budget_);
    return pool.get();
  }
  // Returns the bytes of held pages. Each page counts once.
  std::int64_t bytes_in_use() const {
    std::int64_t bytes = 0;
    for (const auto& [page_bytes, pool] : pools_)
      bytes += pool->pages_in_use() * static_cast<std::int64_t>(page_bytes);
    return bytes;
  }

 private:
  MemoryBudget& budget_;
  SlabMemory memory_;
  std::map<std::size_t, std::unique_ptr<PagePool>> pools_;
};

}  // namespace kvant
