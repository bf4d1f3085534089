#include "cache/slab_memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <set>

namespace kvant {
namespace {

TEST(SlabMemory, GivesSlabsThatDontOverlap) {
  SlabMemory memory;
  std::set<std::byte*> slabs;
  for (int i = 0; i < 40; ++i) {  // One chunk has fewer slabs.
    std::byte* slab = memory.take();
    ASSERT_NE(slab, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(slab) % kSlabBytes, 0U);
    std::memset(slab, i, kSlabBytes);
    EXPECT_TRUE(slabs.insert(slab).second);
  }
  for (auto slab = slabs.begin(), next = std::next(slab); next != slabs.end(); ++slab, ++next)
    EXPECT_GE(*next - *slab, static_cast<std::ptrdiff_t>(kSlabBytes));
  for (std::byte* slab : slabs) memory.give_back(slab);
}

TEST(SlabMemory, TakesAgainWhatWasGivenBack) {
  SlabMemory memory;
  std::byte* first = memory.take();
  std::byte* second = memory.take();
  memory.give_back(first);
  EXPECT_EQ(memory.take(), first);
  memory.give_back(first);
  memory.give_back(second);
}

}  // namespace
}  // namespace kvant
