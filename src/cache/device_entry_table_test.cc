// Tests entries on a device whose memory is host memory.
#include "cache/device_entry_store.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "cache/testing/host_pages.h"

namespace kvant {
namespace {

TEST(DeviceEntryTable, EntriesThatWereGivenBackLendTheirNumbersToLaterOnes) {
  testing::HostPages device;
  MemoryBudget budget(0);
  EntryLayout layout;
  layout.bytes = std::size_t{4} << 20;
  DeviceEntryTable table(device, budget, layout);
  constexpr int kEntries = 40;
  std::int32_t largest = 0;
  for (int round = 0; round < 5; ++round) {
    std::vector<std::int32_t> held;
    for (int i = 0; i < kEntries; ++i) {
      held.push_back(table.take());
      ASSERT_GE(held.back(), 0);
      table.data(held.back())[0] = static_cast<char>(i);
    }
    for (int i = 0; i < kEntries; ++i) EXPECT_EQ(table.data(held[i])[0], static_cast<char>(i));
    const std::int32_t last = *std::max_element(held.begin(), held.end());
    if (round == 0) {
      largest = last;
    } else {
      EXPECT_LE(last, largest);
    }
    for (const std::int32_t id : held) table.release(id);
    EXPECT_TRUE(table.shrink());
    EXPECT_LT(budget.taken(), static_cast<std::int64_t>(kEntries * layout.bytes));
  }
}

}  // namespace
}  // namespace kvant
