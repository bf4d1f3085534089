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

}  // namespace
}  // namespace kvant
