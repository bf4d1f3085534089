// Reads and writes the numbers in recipes, without regard to the locale.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kvant {

// Returns the value of `text` if it is a whole number in [0, limit], or else nothing.
std::optional<int> parse_count(std::string_view text, int limit);

// Returns the value of `text` if it is a decimal number in [low, high], such as "0.05" or "1e-6", or else
// nothing. `low` must be at least 0.
std::optional<double> parse_number(std::string_view text, double low, double high);
// Returns the shortest text from which parse_number() reads exactly `number`, such as "0.05" or "1e-6".
std::string number_text(double number);

}  // namespace kvant
