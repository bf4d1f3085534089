#include "serve/cors.h"

#include <httplib.h>

#include <algorithm>

#include "serve/request_guard.h"

namespace kvant {
namespace {

constexpr const char* kMethods = "GET, HEAD, POST, DELETE, OPTIONS";
// Clients of the APIs send these headers. If a browser's preflight lists other headers, the server allows
// those headers.
constexpr const char* kHeaders =
    "Authorization, Content-Type, x-api-key, anthropic-version, anthropic-beta, x-request-id";
constexpr const char* kReadable = "x-request-id, request-id, Retry-After, WWW-Authenticate";
constexpr const char* kSeconds = "600";  // a browser may cache the response to a preflight this long

bool is_origin(const std::string& text) {
  const std::size_t scheme = text.find("://");
  if (scheme == std::string::npos || scheme == 0 || scheme + 3 == text.size()) return false;
  return text.find_first_of("/?#@ \t*", scheme + 3) == std::string::npos;
}

}  // namespace

Result<CorsPolicy> CorsPolicy::parse(const std::string& origins) {
  CorsPolicy policy;
  for (std::size_t begin = 0; begin <= origins.size() && !origins.empty();) {
    const std::size_t end = std::min(origins.find(',', begin), origins.size());
    std::string origin = in_small_letters(origins.substr(begin, end - begin));
    while (origin.starts_with(' ')) origin.erase(0, 1);
    while (origin.ends_with(' ') || origin.ends_with('/')) origin.pop_back();
    begin = end + 1;
    if (origin == "*") {
      policy.all_ = true;
    } else if (is_origin(origin)) {
      policy.origins_.push_back(std::move(origin));
    } else {
      return error(
          "'{}' is not the origin of a web page: give SCHEME://HOST[:PORT], such as https://chat.example, or "
          "*",
          origin);
    }
  }
  return policy;
}

bool CorsPolicy::allows(const std::string& origin) const {
  return !origin.empty() && (all_ || std::ranges::find(origins_, in_small_letters(origin)) != origins_.end());
}

bool CorsPolicy::is_preflight(const httplib::Request& request) {
  return request.method == "OPTIONS" && request.has_header("Origin") &&
         request.has_header("Access-Control-Request-Method");
}

void CorsPolicy::allow(const httplib::Request& request, httplib::Response& response) const {
  if (!all_ && origins_.empty()) return;
  if (!all_) response.set_header("Vary", "Origin");  // HTTP caches must keep one response per origin
  const std::string origin = request.get_header_value("Origin");
  if (!allows(origin)) return;
  response.set_header("Access-Control-Allow-Origin", all_ ? "*" : origin);
  if (!is_preflight(request)) {
    response.set_header("Access-Control-Expose-Headers", kReadable);
    return;
  }
  const std::string headers = request.get_header_value("Access-Control-Request-Headers");
  response.set_header("Access-Control-Allow-Methods", kMethods);
  response.set_header("Access-Control-Allow-Headers", headers.empty() ? kHeaders : headers);
  response.set_header("Access-Control-Max-Age", kSeconds);
  // The header means that a web page from the internet wants to reach a server on the user's own machine.
  if (request.has_header("Access-Control-Request-Private-Network"))
    response.set_header("Access-Control-Allow-Private-Network", "true");
}

}  // namespace kvant
