// UTF-8 (RFC 3629).
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "base/result.h"

namespace kvant {

// Offset of the first byte that does not belong to a well-formed character: overlong forms, surrogates,
// values above U+10FFFF and characters cut short are not. Nothing when all of `text` is UTF-8.
std::optional<std::size_t> first_invalid_utf8(std::string_view text);

// An error that names that byte where there is one. what: "the text".
Status check_utf8(const char* what, std::string_view text);
// The same, or of a byte of value 0, at which a chat template would end, so that what follows would be lost.
Status check_message_text(const char* what, std::string_view text);

}  // namespace kvant
