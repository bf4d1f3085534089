#include "base/heap.h"

#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/resident_memory.h"

namespace kvant {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

// Returns whether heap_bytes() sees an allocation. The sanitizers have a heap of their own, which counts
// nothing.
bool counts() {
  const auto sum = [] {
    const HeapBytes bytes = heap_bytes().value_or(HeapBytes{});
    return bytes.small_blocks + bytes.large_blocks;
  };
  const std::int64_t before = sum();
  const auto block = std::make_unique<std::vector<char>>(16 * kMiB);
  return sum() > before;
}

TEST(HeapBytes, AreThoseOfSmallBlocksAndOfLargeOnes) {
  if (!counts()) GTEST_SKIP() << "the C library does not count its heap";
  const HeapBytes before = *heap_bytes();
  std::vector<std::unique_ptr<char[]>> small(10'000);
  for (auto& block : small) block = std::make_unique<char[]>(1000);
  auto large = std::make_unique<std::vector<char>>(64 * kMiB);
  const HeapBytes held = *heap_bytes();
  EXPECT_NEAR(held.small_blocks - before.small_blocks, 10e6, 0.5e6);
  EXPECT_NEAR(held.large_blocks - before.large_blocks, 64 * kMiB, 0.5e6);
  large.reset();
  small.clear();
  EXPECT_NEAR(heap_bytes()->small_blocks - before.small_blocks, 0, 0.5e6);
  EXPECT_NEAR(heap_bytes()->large_blocks - before.large_blocks, 0, 0.5e6);
}

// Many threads take large and small blocks, and the small blocks stay. Without bound_free_heap(), 134 MiB of
// the large blocks stayed, too.
TEST(BoundFreeHeap, KeepsNoPagesOfLargeBlocksThatAreFreed) {
  if (!counts()) GTEST_SKIP() << "the C library does not count its heap";
  bound_free_heap();
  std::mutex mutex;
  std::vector<std::unique_ptr<std::vector<char>>> kept;
  const std::int64_t before = resident_bytes();
  std::vector<std::thread> threads;
  threads.reserve(16);
  for (int t = 0; t < 16; ++t) {
    threads.emplace_back([&] {
      for (std::int64_t size = kMiB; size <= 8 * kMiB; size += kMiB) {
        auto large = std::make_unique<std::vector<char>>(size, 1);
        const std::lock_guard lock(mutex);
        kept.push_back(std::make_unique<std::vector<char>>(1000, 1));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(resident_bytes() - before, 8 * kMiB);
}

}  // namespace
}  // namespace kvant
