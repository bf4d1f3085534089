// Decides which web pages of other origins may reach this server from a browser (CORS, cross-origin resource
// sharing). By default, no page of another origin may. --cors names the allowed origins.
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
  // Parses a list such as "https://a.example,http://localhost:3000". "*" allows all origins, and an empty
  // string allows none. An origin has a scheme, a host, and a port unless the port is the scheme's default.
  static Result<CorsPolicy> parse(const std::string& origins);

  // Adds the headers that let a web page read the response, if the policy allows the page's origin.
  void allow(const httplib::Request& request, httplib::Response& response) const;
  // Returns whether the request is a preflight, in which a browser asks what a web page may send. allow()
  // also responds to preflights.
  static bool is_preflight(const httplib::Request& request);

 private:
  bool allows(const std::string& origin) const;

  std::vector<std::string> origins_;  // names in lowercase
  bool all_ = false;
};

}  // namespace kvant
