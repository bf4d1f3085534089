#include "serve/api_key.h"

#include <cctype>

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
  // RFC 9110, section 11.1, makes the name of the scheme case-insensitive.
  constexpr std::string_view kScheme = "bearer ";
  if (authorization.size() < kScheme.size()) return false;
  for (std::size_t i = 0; i < kScheme.size(); ++i) {
    if (std::tolower(static_cast<unsigned char>(authorization[i])) != kScheme[i]) return false;
  }
  authorization.remove_prefix(kScheme.size());
  return equal_in_constant_time(key, authorization);
}

}  // namespace kvant
