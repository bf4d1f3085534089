#include "attention/device_room.h"

#include <gtest/gtest.h>

#include <cstring>

#include "cache/testing/host_pages.h"

namespace kvant {
namespace {

TEST(DeviceRoom, GrowsByMoreThanIsAskedFor) {
  DeviceRoom room(std::make_shared<testing::HostPages>());
  ASSERT_TRUE(room.reserve(1000, "for a test").ok());
  EXPECT_EQ(room.bytes(), 1500U);
  std::memset(room.memory(), 1, room.bytes());
  const char* before = room.memory();
  ASSERT_TRUE(room.reserve(1400, "for a test").ok());
  EXPECT_EQ(room.memory(), before);
}

TEST(DeviceRoom, TakesWhatIsAskedForWhereThereIsNoMore) {
  DeviceRoom room(std::make_shared<testing::HostPages>(/*limit=*/1000));
  ASSERT_TRUE(room.reserve(800, "for a test").ok());
  EXPECT_EQ(room.bytes(), 800U);
  const Status refused = room.reserve(1001, "for a test");
  ASSERT_FALSE(refused.ok());
  EXPECT_TRUE(refused.error().is_shortage);
  EXPECT_NE(refused.error().message.find("no room for a test"), std::string::npos);
  EXPECT_EQ(room.bytes(), 0U);
  EXPECT_TRUE(room.reserve(900, "for a test").ok());
}

}  // namespace
}  // namespace kvant
