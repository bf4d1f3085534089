// Numbers in recipes.
#pragma once

#include <optional>
#include <string_view>

namespace kvant {

// The decimal number that `text` is, from its first to its last letter; nothing if it isn't one in
// [0, limit].
std::optional<int> parse_count(std::string_view text, int limit);

}  // namespace kvant
