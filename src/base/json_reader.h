// Reads JSON from untrusted sources, such as requests and session files. Any bytes give a value or an error,
// and no input exhausts memory or the stack.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace kvant {

// Deeper nesting is refused, because functions that walk over a value recurse once per level.
inline constexpr int kMaxJsonDepth = 64;
// Objects with more members are refused, because an ordered object searches its keys linearly.
inline constexpr int kMaxJsonMembers = 4096;

// Parses `text`. The error says at which byte the text stops being JSON, or which limit the text exceeds.
Result<nlohmann::ordered_json> parse_json(std::string_view text);

// text_member() and number_member() return a member of a value if it has the requested type. The value need
// not be an object.
std::optional<std::string> text_member(const nlohmann::ordered_json& json, const char* key);
std::optional<double> number_member(const nlohmann::ordered_json& json, const char* key);
// Returns the member if it is an array of numbers only.
std::optional<std::vector<double>> numbers_member(const nlohmann::ordered_json& json, const char* key);

}  // namespace kvant
