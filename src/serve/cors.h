// Cross-origin resource sharing decides which web pages of other origins may reach this server from a
// browser.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace httplib {
struct Request;
struct Response;
}  // namespace httplib

namespace kvant {

class CorsPolicy {
 public:
  // Parses "https://a.example,http://localhost:3000", or "*" for all origins; empty: none. An origin has a
  // scheme, a host, and a port unless it is the scheme's default.
  static Result<CorsPolicy> parse(const std::string& origins);

  // Adds the headers by which a browser lets the web page read the response, if the policy allows it.
  void allow(const httplib::Request& request, httplib::Response& response) const;
  // Returns whether a browser asks what a web page may send. allow() then writes the answer.
  static bool is_preflight(const httplib::Request& request);

 private:
  bool allows(const std::string& origin) const;

  std::vector<std::string> origins_;  // in lower case
  bool all_ = false;
};

}  // namespace kvant
