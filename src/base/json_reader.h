// Reading JSON that somebody else wrote: any bytes give a value or an error.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace kvant {

// Deeper nesting is refused: what walks over a value calls itself once a level.
inline constexpr int kMaxJsonDepth = 64;
// Objects of more members are refused: an ordered object looks for a key in one after the other.
inline constexpr int kMaxJsonMembers = 4096;

// An error says at which byte the text stops being JSON, or which limit it exceeds.
Result<nlohmann::ordered_json> parse_json(std::string_view text);

// Members of a value that need not be an object, of the type asked for; nothing where there is none.
std::optional<std::string> text_member(const nlohmann::ordered_json& json, const char* key);
std::optional<double> number_member(const nlohmann::ordered_json& json, const char* key);
// An array of numbers and nothing else.
std::optional<std::vector<double>> numbers_member(const nlohmann::ordered_json& json, const char* key);

}  // namespace kvant
