// The next turn of a chat whose earlier turns are known only as tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "chat/chat_template.h"

namespace kvant {

struct ChatTurn {
  std::string text;
  std::vector<std::int32_t> tokens;
};

// Returns the template's text between a completion and the next one, with `message` as the user's: the end of
// the assistant's turn, the user's turn, and the beginning of the assistant's next turn. Errors: see
// write_chat; or the template's text depends on more than the earlier turns, so turns can't simply be
// appended.
Result<ChatTurn> next_turn(const ChatTemplate& chat_template, const std::string& message);

}  // namespace kvant
