#include "bench/read_bandwidth.h"

#include <gtest/gtest.h>

namespace kvant {
namespace {

// measure_read_bandwidth() itself checks that every word is read.
TEST(ReadBandwidth, IsMeasuredOnAnyNumberOfThreads) {
  for (const int n_threads : {1, 2, 3}) {
    const auto speed = measure_read_bandwidth(100'000, n_threads);
    ASSERT_TRUE(speed.ok());
    EXPECT_GT(*speed, 0);
  }
  EXPECT_TRUE(measure_read_bandwidth(8, 2).ok());
}

TEST(ReadBandwidth, NeedsMemory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer ends the process when so much is asked for";
#endif
  const auto speed = measure_read_bandwidth(std::size_t{1} << 62, 1);
  ASSERT_FALSE(speed.ok());
  EXPECT_NE(speed.error().message.find("out of memory"), std::string::npos);
}

}  // namespace
}  // namespace kvant
