#include "recipe/number_text.h"

#include <fmt/format.h>

#include <charconv>

namespace kvant {

std::optional<int> parse_count(std::string_view text, int limit) {
  int value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, value);
  if (failure != std::errc() || stop != end || value < 0 || value > limit || text[0] == '-')
    return std::nullopt;
  return value;
}

std::optional<double> parse_number(std::string_view text, double low, double high) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, value);
  // NaN makes in_range false.
  const bool in_range = value >= low && value <= high;
  if (failure != std::errc() || stop != end || !in_range || text[0] == '-') return std::nullopt;
  return value;
}

std::string number_text(double number) {
  std::string text = fmt::format("{}", number);
  const std::size_t exponent = text.find("e-0");
  if (exponent != std::string::npos) text.erase(exponent + 2, 1);
  return text;
}

}  // namespace kvant
