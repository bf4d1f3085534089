#include "attention/device_buffer.h"

#include <gtest/gtest.h>

#include <cstring>

#include "cache/testing/host_pages.h"

namespace kvant {
namespace {

TEST(DeviceBuffer, GrowsByMoreThanIsAskedFor) {
  DeviceBuffer buffer(std::make_shared<testing::HostPages>());
  ASSERT_TRUE(buffer.reserve(1000, "for a test").ok());
  EXPECT_EQ(buffer.bytes(), 1500U);
  std::memset(buffer.memory(), 1, buffer.bytes());
  const char* before = buffer.memory();
  ASSERT_TRUE(buffer.reserve(1400, "for a test").ok());
  EXPECT_EQ(buffer.memory(), before);
}

TEST(DeviceBuffer, TakesWhatIsAskedForWhereThereIsNoMore) {
  DeviceBuffer buffer(std::make_shared<testing::HostPages>(/*limit=*/1000));
  ASSERT_TRUE(buffer.reserve(800, "for a test").ok());
  EXPECT_EQ(buffer.bytes(), 800U);
  const Status refused = buffer.reserve(1001, "for a test");
  ASSERT_FALSE(refused.ok());
  EXPECT_TRUE(refused.error().is_shortage);
  EXPECT_NE(refused.error().message.find("no room for a test"), std::string::npos);
  EXPECT_EQ(buffer.bytes(), 0U);
  EXPECT_TRUE(buffer.reserve(900, "for a test").ok());
}

}  // namespace
}  // namespace kvant
