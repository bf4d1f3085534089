#include "base/progress.h"

#include <gtest/gtest.h>

namespace kvant {
namespace {

TEST(ReadableDuration, UsesTheTwoLargestUnits) {
  EXPECT_EQ(readable_duration(0.2), "0 s");
  EXPECT_EQ(readable_duration(59.4), "59 s");
  EXPECT_EQ(readable_duration(185), "3 min 05 s");
  EXPECT_EQ(readable_duration(7800), "2 h 10 min");
}

TEST(ReadableBytes, UsesBinaryUnits) {
  EXPECT_EQ(readable_bytes(940), "940 B");
  EXPECT_EQ(readable_bytes(1536), "1.5 KiB");
  EXPECT_EQ(readable_bytes(4.0 * 1024 * 1024 * 1024), "4.0 GiB");
}

TEST(Progress, PrintsNothingForAShortOperationOutsideATerminal) {
  std::FILE* out = std::tmpfile();
  ASSERT_NE(out, nullptr);
  {
    Progress progress("reading", 10, "tokens", out);
    for (int i = 0; i < 10; ++i) progress.advance(1);
  }
  EXPECT_EQ(std::ftell(out), 0);
  std::fclose(out);
}

}  // namespace
}  // namespace kvant
