#include "serve/request_guard.h"

#include <httplib.h>

#include <arpa/inet.h>

#include <algorithm>

namespace kvant {
namespace {

constexpr const char* kJson = "application/json";

// Browsers say where a request comes from; a page can't keep them from it.
bool is_of_a_browser(const httplib::Request& request) {
  return request.has_header("Origin") || request.has_header("Sec-Fetch-Site") ||
         request.has_header("Referer");
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
  const bool is_address = inet_pton(AF_INET, host.c_str(), &address) == 1;  // a name may begin with 127., too
  return host == "localhost" || host == "[::1]" || (is_address && ntohl(address.s_addr) >> 24 == 127);
}

std::string media_type(const std::string& content_type) {
  std::string type = in_small_letters(content_type.substr(0, content_type.find(';')));
  while (type.starts_with(' ') || type.starts_with('\t')) type.erase(0, 1);
  while (type.ends_with(' ') || type.ends_with('\t')) type.pop_back();
  return type;
}

void normalize_request(httplib::Request& request) {
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
