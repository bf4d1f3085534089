// Checks the API key that a client sends. The time of the comparison does not depend on where a wrong key
// differs, so an attacker learns nothing from the time.
#pragma once

#include <string>
#include <string_view>

namespace kvant {

// Compares two texts in a time that depends only on the length of `shown`. An attacker therefore cannot learn
// from the time how much of a guess is right.
bool equal_in_constant_time(std::string_view secret, std::string_view shown);

// Returns whether `authorization`, the value of an Authorization header, is "Bearer KEY". The word "Bearer"
// is case-insensitive.
bool is_authorized(const std::string& key, std::string_view authorization);

}  // namespace kvant
