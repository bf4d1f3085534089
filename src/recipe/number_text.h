// Reads and writes numbers in recipes.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kvant {

// Returns the decimal number that `text` is as a whole, or nothing if it isn't one in [0, limit].
std::optional<int> parse_count(std::string_view text, int limit);

// Does the same for a decimal fraction ("0.05", "1e-6") in [low, high], low >= 0.
std::optional<double> parse_number(std::string_view text, double low, double high);
// Returns the shortest text that parse_number reads as the same number: "0.05", "1e-6".
std::string number_text(double number);

}  // namespace kvant
