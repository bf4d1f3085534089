// Checks that texts are UTF-8 (RFC 3629). llama.cpp would replace or misread invalid bytes silently, so
// callers check texts first.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "base/result.h"

namespace kvant {

// Returns the offset of the first byte that does not belong to a well-formed character. Returns nothing if
// all of `text` is UTF-8. Overlong forms, surrogates, values above U+10FFFF and truncated characters are not
// well-formed.
std::optional<std::size_t> first_invalid_utf8(std::string_view text);

// Returns an error that gives the offset of the first invalid byte, if there is one. `what` names the text,
// such as "the text".
Status check_utf8(const char* what, std::string_view text);
// Does the same as check_utf8(), and also refuses a byte of value 0, at which a chat template would cut the
// text off.
Status check_message_text(const char* what, std::string_view text);

}  // namespace kvant
