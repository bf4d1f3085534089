#include "serve/cors.h"

#include <gtest/gtest.h>

namespace kvant {
namespace cors_test {

httplib::Request from(const char* origin, const char* method = "POST") {
  httplib::Request request;
  request.method = method;
  request.set_header("Origin", origin);
  return request;
}

std::string allowed(const CorsPolicy& policy, const httplib::Request& request) {
  httplib::Response response;
  policy.allow(request, response);
  return response.get_header_value("Access-Control-Allow-Origin");
}

TEST(Cors, AllowsNobodyByDefault) {
  httplib::Response response;
  CorsPolicy::parse("").value().allow(from("https://a.example"), response);
  EXPECT_TRUE(response.headers.empty());
}

TEST(Cors, AllowsTheOriginsThatAreNamedAndNoOthers) {
  const CorsPolicy policy = CorsPolicy::parse("https://a.example, http://LOCALHOST:3000/").value();
  EXPECT_EQ(allowed(policy, from("https://a.example")), "https://a.example");
  EXPECT_EQ(allowed(policy, from("http://localhost:3000")), "http://localhost:3000");
  for (const char* other : {"http://a.example", "https://a.example:444", "https://b.a.example",
                            "https://a.example.evil.com", "null", ""})
    EXPECT_EQ(allowed(policy, from(other)), "") << other;
  httplib::Response response;
  policy.allow(from("https://evil.com"), response);
  EXPECT_EQ(response.get_header_value("Vary"), "Origin");
}

TEST(Cors, AllowsAllWithAStar) {
  const CorsPolicy policy = CorsPolicy::parse("*").value();
  EXPECT_EQ(allowed(policy, from("https://a.example")), "*");
  EXPECT_EQ(allowed(policy, from("null")), "*");  // a web page that was opened from a file
  EXPECT_EQ(allowed(policy, httplib::Request()), "");
}

TEST(Cors, SaysInAPreflightWhatMayBeSent) {
  const CorsPolicy policy = CorsPolicy::parse("https://a.example").value();
  httplib::Request request = from("https://a.example", "OPTIONS");
  EXPECT_FALSE(CorsPolicy::is_preflight(request));
  request.set_header("Access-Control-Request-Method", "POST");
  EXPECT_TRUE(CorsPolicy::is_preflight(request));
  request.set_header("Access-Control-Request-Headers", "authorization,x-stainless-os");
  httplib::Response response;
  policy.allow(request, response);
  EXPECT_EQ(response.get_header_value("Access-Control-Allow-Headers"), "authorization,x-stainless-os");
  EXPECT_NE(response.get_header_value("Access-Control-Allow-Methods").find("DELETE"), std::string::npos);
}

TEST(Cors, RefusesWhatIsNoOrigin) {
  for (const char* wrong :
       {"a.example", "https://", "https://a.example/path", "https://*.example", "https://a,,"})
    EXPECT_FALSE(CorsPolicy::parse(wrong).ok()) << wrong;
}

}  // namespace cors_test
}  // namespace kvant
