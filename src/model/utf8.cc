#include "model/utf8.h"

namespace kvant {
namespace {

// Returns the number of bytes of the well-formed character at the start of `text` (RFC 3629, section 4), or 0
// if there is none.
std::size_t character_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead < 0xc2 || lead > 0xf4) return 0;
  const std::size_t n = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (text.size() < n) return 0;
  // The range of the second byte excludes overlong forms, surrogates and values above U+10FFFF.
  const unsigned char lowest = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const unsigned char highest = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  if (byte(1) < lowest || byte(1) > highest) return 0;
  for (std::size_t i = 2; i < n; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xbf) return 0;
  }
  return n;
}

}  // namespace

std::optional<std::size_t> first_invalid_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t n = character_bytes(text.substr(i));
    if (n == 0) return i;
    i += n;
  }
  return std::nullopt;
}

Status check_utf8(const char* what, std::string_view text) {
  const auto at = first_invalid_utf8(text);
  if (!at) return {};
  return error("{} is not UTF-8: byte {} (0x{:02x}) does not start a character; convert it first", what, *at,
               static_cast<unsigned char>(text[*at]));
}

Status check_message_text(const char* what, std::string_view text) {
  KVANT_RETURN_IF_ERROR(check_utf8(what, text));
  const std::size_t nul = text.find('\0');
  if (nul == std::string_view::npos) return {};
  return error("{} has a byte of value 0, at {}, which chat templates can't hold: leave it out", what, nul);
}

}  // namespace kvant
