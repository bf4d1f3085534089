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
  for (const char* right : {"Bearer secret", "bearer secret", "BEARER secret"})
    EXPECT_TRUE(is_authorized("secret", right)) << right;
  for (const char* wrong :
       {"", "secret", "bearer SECRET", "Basic secret", "Bearer  secret", "Bearer secret ", "Bearersecret"})
    EXPECT_FALSE(is_authorized("secret", wrong)) << wrong;
}

}  // namespace
}  // namespace kvant
