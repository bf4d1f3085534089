#include "cache/page_pool.h"

#include <gtest/gtest.h>

#include <cstring>

namespace kvant {
namespace {

TEST(PagePool, ReturnsEmptySlabsToTheBudget) {
  MemoryBudget budget(0);
  SlabMemory memory;
  PagePool pool(1088, memory, budget);
  std::vector<PageId> pages;
  for (int i = 0; i < 1000; ++i) {
    pages.push_back(pool.allocate());
    std::memset(pool.data(pages.back()), i, 1088);
  }
  EXPECT_EQ(pool.pages_in_use(), 1000);
  const std::int64_t full = budget.taken();
  EXPECT_GE(full, 1000 * 1088);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(static_cast<int>(pool.data(pages[i])[1087]), i % 256);
    pool.release(pages[i]);
  }
  EXPECT_EQ(pool.pages_in_use(), 0);
  EXPECT_LT(budget.taken(), full / 3);
}

TEST(PagePool, ReusesAPageOnlyAfterItsRelease) {
  MemoryBudget budget(0);
  SlabMemory memory;
  PagePool pool(64, memory, budget);
  const PageId page = pool.allocate();
  EXPECT_NE(pool.allocate(), page);
  pool.release(page);
  EXPECT_EQ(pool.pages_in_use(), 1);
  EXPECT_EQ(pool.allocate(), page);
}

TEST(PagePool, RefusesBeyondTheBudget) {
  MemoryBudget budget(1 << 20);
  SlabMemory memory;
  PagePool pool(4096, memory, budget);
  int n = 0;
  while (pool.allocate() != kNoPage) ++n;
  EXPECT_GT(n, 200);
  EXPECT_LE(budget.taken(), 1 << 20);
}

}  // namespace
}  // namespace kvant
