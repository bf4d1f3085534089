// Checks the key that clients must show.
#pragma once

#include <string>
#include <string_view>

namespace kvant {

// Compares texts in a time that depends only on the length of `shown`, not on where they differ.
bool equal_in_constant_time(std::string_view secret, std::string_view shown);

// Returns whether the value of an Authorization header is "Bearer KEY". The scheme's name is
// case-insensitive.
bool is_authorized(const std::string& key, std::string_view authorization);

}  // namespace kvant
