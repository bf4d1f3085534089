#include "serve/api_key.h"

#include <gtest/gtest.h>

namespace kvant {
namespace {

TEST(ApiKey, IsTheWholeKeyAndNothingElse) {
  for (const char* wrong : {"", "k", "secre", "secret!", "secrets", "Secret", "secretsecret"})
    EXPECT_FALSE(equal_in_constant_time("secret", wrong)) << wrong;
  EXPECT_TRUE(equal_in_constant_time("secret", "secret"));
  EXPECT_FALSE(equal_in_constant_time("", "x"));
}

TEST(ApiKey, ComesInABearerHeader) {
  EXPECT_TRUE(is_authorized("secret", "Bearer secret"));
  for (const char* wrong :
       {"", "secret", "bearer secret", "Basic secret", "Bearer  secret", "Bearer secret "})
    EXPECT_FALSE(is_authorized("secret", wrong)) << wrong;
}

}  // namespace
}  // namespace kvant
