// Pieces of error messages.
#pragma once

#include <span>
#include <string>

namespace kvant {

// What the user wrote, in quotes; unprintable bytes as '?', long texts cut.
std::string quoted(const std::string& text);
// "; did you mean a, b or c?", or "" for no names.
std::string did_you_mean(std::span<const std::string> names);
// "a, b, c".
std::string listed(std::span<const std::string> names);

}  // namespace kvant
