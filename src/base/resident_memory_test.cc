#include "base/resident_memory.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvant {
namespace {

TEST(ResidentMemory, GrowsByWhatIsWritten) {
  constexpr std::int64_t kBytes = 64 << 20;
  const std::int64_t before = resident_bytes();
  const std::vector<char> memory(kBytes, 1);
  EXPECT_GT(resident_bytes(), before + kBytes / 2);
  EXPECT_EQ(memory[kBytes - 1], 1);
  EXPECT_GT(resident_file_bytes(), 0);  // The program itself is mapped.
  EXPECT_LT(resident_file_bytes(), resident_bytes());
}

}  // namespace
}  // namespace kvant
