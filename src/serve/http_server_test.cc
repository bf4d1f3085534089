#include "serve/http_server.h"

#include <gtest/gtest.h>

namespace kvant {
namespace {

TEST(UrlHost, PutsBracketsAroundAddressesWithColons) {
  EXPECT_EQ(url_host("::1"), "[::1]");
  EXPECT_EQ(url_host("fe80::1"), "[fe80::1]");
  EXPECT_EQ(url_host("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(url_host("localhost"), "localhost");
}

TEST(IsLoopback, TellsThisMachineFromOthers) {
  for (const char* own : {"127.0.0.1", "127.1.2.3:8080", "localhost", "localhost:1", "[::1]", "[::1]:8080"})
    EXPECT_TRUE(is_loopback(own)) << own;
  for (const char* other : {"0.0.0.0", "10.0.0.1:8080", "evil.com", "127.evil.com", "[::]", ":8080", ""})
    EXPECT_FALSE(is_loopback(other)) << other;
}

}  // namespace
}  // namespace kvant
