// Formats parts of error messages: quoted texts, lists of names, and suggestions.
#pragma once

#include <span>
#include <string>

namespace kvant {

// Returns `text` in quotation marks. Unprintable bytes become '?', and long texts are cut.
std::string quoted(const std::string& text);
// Returns "; did you mean a, b or c?", or an empty string if there are no names.
std::string did_you_mean(std::span<const std::string> names);
// Returns the names as "a, b, c".
std::string listed(std::span<const std::string> names);

}  // namespace kvant
