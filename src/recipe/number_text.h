// Reads and writes the numbers in recipes, without regard to the locale.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kvant {

// Returns the whole number in [0, limit] that `text` is, or nothing if `text` is no such number.
std::optional<int> parse_count(std::string_view text, int limit);

// Returns the decimal fraction in [low, high] that `text` is, such as "0.05" or "1e-6", or nothing. `low`
// must be at least 0.
std::optional<double> parse_number(std::string_view text, double low, double high);
// Returns the shortest text that parse_number() reads as exactly `number`, such as "0.05" or "1e-6".
std::string number_text(double number);

}  // namespace kvant
