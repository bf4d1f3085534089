// Cross-origin resource sharing: which web pages of other origins may ask this server from a browser.
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
  // "https://a.example,http://localhost:3000", or "*" for all; empty: none. An origin has a scheme and a
  // host, and a port where it is not the scheme's own.
  static Result<CorsPolicy> parse(const std::string& origins);

  // Says in the response's headers that the page that asks may read it, where that is so.
  void allow(const httplib::Request& request, httplib::Response& response) const;
  // Whether a browser asks what a page may send, before it sends it. allow() has the answer then.
  static bool is_preflight(const httplib::Request& request);

 private:
  bool allows(const std::string& origin) const;

  std::vector<std::string> origins_;  // in small letters
  bool all_ = false;
};

}  // namespace kvant
