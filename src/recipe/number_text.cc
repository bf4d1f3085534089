#include "recipe/number_text.h"

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

}  // namespace kvant
