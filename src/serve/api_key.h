// The key that clients must show.
#pragma once

#include <string>
#include <string_view>

namespace kvant {

// Compares in a time that tells nothing about where texts differ, only about the length of `shown`.
bool equal_in_constant_time(std::string_view secret, std::string_view shown);

// Whether the value of an Authorization header is "Bearer KEY"; the scheme's name in any letters.
bool is_authorized(const std::string& key, std::string_view authorization);

}  // namespace kvant
