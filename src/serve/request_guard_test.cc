#include "serve/request_guard.h"

#include <httplib.h>

#include <gtest/gtest.h>

namespace kvant {
namespace request_guard_test {

httplib::Request with(std::initializer_list<std::pair<const char*, const char*>> headers,
                      const char* path = "/x") {
  httplib::Request request;
  request.path = path;
  for (const auto& [name, value] : headers) request.set_header(name, value);
  normalize_request(request);
  return request;
}

TEST(IsLoopback, TellsThisMachineFromOthers) {
  for (const char* own :
       {"127.0.0.1", "127.1.2.3:8080", "localhost", "localhost:1", "LocalHost:80", "[::1]", "[::1]:8080"})
    EXPECT_TRUE(is_loopback(own)) << own;
  for (const char* other : {"0.0.0.0", "10.0.0.1:8080", "evil.com", "127.evil.com", "[::]", ":8080", ""})
    EXPECT_FALSE(is_loopback(other)) << other;
}

TEST(RequestGuard, KnowsJsonHoweverItIsWritten) {
  for (const char* type : {"application/json", "Application/JSON", "application/json; charset=utf-8",
                           " application/json ;charset=UTF-8"})
    EXPECT_TRUE(is_json(with({{"Content-Type", type}}))) << type;
  for (const char* type :
       {"text/plain", "text/plain; application/json", "application/jsonp", "multipart/form-data"})
    EXPECT_FALSE(is_json(with({{"Content-Type", type}}))) << type;
}

// A browser sends a body without a type, a form or plain text for any web page without a preflight.
TEST(RequestGuard, TakesAnotherTypeForJsonOnlyWhereNoBrowserSendsIt) {
  EXPECT_TRUE(is_json(with({})));
  EXPECT_TRUE(is_json(with({{"Content-Type", "application/x-www-form-urlencoded"}})));
  EXPECT_FALSE(is_json(with({{"Content-Type", "text/plain"}})));
  for (const char* sign : {"Origin", "Sec-Fetch-Site", "Referer"}) {
    EXPECT_FALSE(is_json(with({{sign, "null"}}))) << sign;
    EXPECT_FALSE(is_json(with({{sign, "x"}, {"Content-Type", "application/x-www-form-urlencoded"}}))) << sign;
    EXPECT_TRUE(is_json(with({{sign, "x"}, {"Content-Type", "application/json"}}))) << sign;
  }
}

TEST(RequestGuard, TakesOnePathForAnotherThatDiffersBySlashes) {
  EXPECT_EQ(with({}, "/").path, "/");
  EXPECT_EQ(with({}, "//").path, "/");
  EXPECT_EQ(with({}, "/v1/models/").path, "/v1/models");
  EXPECT_EQ(with({}, "//v1//chat///completions//").path, "/v1/chat/completions");
}

TEST(RequestGuard, GivesNoPartsOfResponses) {
  httplib::Request request;
  request.ranges = {{0, 1}};
  normalize_request(request);
  EXPECT_TRUE(request.ranges.empty());
}

TEST(RequestGuard, ReadsTheWholeUrlOfAProxy) {
  struct Case {
    const char *target, *path, *host;
  };
  for (const Case& one : {Case{"http://localhost:80/v1/models", "/v1/models", "localhost:80"},
                          {"HTTP://a.example/v1%2Fmodels/?x=http://b/c", "/v1/models", "a.example"},
                          {"https://[::1]:8080", "/", "[::1]:8080"},
                          {"http://a?x=/y", "/", "a"},
                          {"/http://a/b", "/http:/a/b", "header"},
                          {"ftp://a/b", "ftp:/a/b", "header"}}) {
    httplib::Request request;
    request.target = one.target;
    request.path = request.target;
    request.set_header("Host", "header");
    normalize_request(request);
    EXPECT_EQ(request.path, one.path) << one.target;
    EXPECT_EQ(request.get_header_value("Host"), one.host) << one.target;
  }
}

}  // namespace request_guard_test
}  // namespace kvant
