#include "serve/request_guard.h"

#include <arpa/inet.h>
#include <httplib.h>

#include <algorithm>

namespace kvant {
namespace {

constexpr const char* kJson = "application/json";

// Browsers add these headers, and a web page cannot remove them.
bool is_of_a_browser(const httplib::Request& request) {
  return request.has_header("Origin") || request.has_header("Sec-Fetch-Site") ||
         request.has_header("Referer");
}

// A proxy's request line is "GET http://host/path". The host in the line then counts, whatever the Host
// header says (RFC 9112, section 3.2.2).
void read_absolute_form(httplib::Request& request) {
  const std::size_t scheme = request.target.find("://");
  const std::string name = in_small_letters(request.target.substr(0, scheme));
  if (scheme == std::string::npos || (name != "http" && name != "https")) return;
  const std::size_t host = scheme + 3;
  const std::size_t path = std::min(request.target.find_first_of("/?", host), request.target.size());
  const std::size_t query = std::min(request.target.find('?', path), request.target.size());
  request.path = httplib::decode_path_component(request.target.substr(path, query - path));
  if (request.path.empty()) request.path = "/";
  request.headers.erase("Host");
  request.set_header("Host", request.target.substr(host, path - host));
}

}  // namespace

std::string in_small_letters(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return text;
}

bool is_loopback(std::string host) {
  host = in_small_letters(std::move(host));
  if (const std::size_t port = host.rfind(':');
      port != std::string::npos && host.find(']', port) == std::string::npos)
    host.resize(port);
  in_addr address{};
  // A host name may also begin with "127.", so only an address counts as loopback.
  const bool is_address = inet_pton(AF_INET, host.c_str(), &address) == 1;
  return host == "localhost" || host == "[::1]" || (is_address && ntohl(address.s_addr) >> 24 == 127);
}

std::string media_type(const std::string& content_type) {
  std::string type = in_small_letters(content_type.substr(0, content_type.find(';')));
  while (type.starts_with(' ') || type.starts_with('\t')) type.erase(0, 1);
  while (type.ends_with(' ') || type.ends_with('\t')) type.pop_back();
  return type;
}

void normalize_request(httplib::Request& request) {
  read_absolute_form(request);
  request.ranges.clear();  // every response is new, so a byte range of it is useless
  const auto both_slashes = [](char a, char b) { return a == '/' && b == '/'; };
  request.path.erase(std::unique(request.path.begin(), request.path.end(), both_slashes), request.path.end());
  if (request.path.size() > 1 && request.path.ends_with('/')) request.path.pop_back();
  const std::string type = media_type(request.get_header_value("Content-Type"));
  if ((!type.empty() && type != "application/x-www-form-urlencoded") || is_of_a_browser(request)) return;
  request.headers.erase("Content-Type");
  request.set_header("Content-Type", kJson);
}

bool is_json(const httplib::Request& request) {
  return media_type(request.get_header_value("Content-Type")) == kJson;
}

}  // namespace kvant
