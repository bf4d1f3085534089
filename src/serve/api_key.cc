#include "serve/api_key.h"

namespace kvant {

bool equal_in_constant_time(std::string_view secret, std::string_view shown) {
  unsigned differences = secret.size() == shown.size() ? 0 : 1;
  for (std::size_t i = 0; i < shown.size(); ++i) {
    const char expected = secret.empty() ? '\0' : secret[i % secret.size()];
    differences |= static_cast<unsigned char>(expected) ^ static_cast<unsigned char>(shown[i]);
  }
  return differences == 0;
}

bool is_authorized(const std::string& key, std::string_view authorization) {
  constexpr std::string_view kScheme = "Bearer ";
  if (!authorization.starts_with(kScheme)) return false;
  return equal_in_constant_time(key, authorization.substr(kScheme.size()));
}

}  // namespace kvant
