// The next turn of a chat whose earlier turns are known as tokens only.
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

// What the chat template has between the text of a completion and the next one, with `message` as the user's:
// the end of the assistant's turn, the user's turn, the beginning of the assistant's next. Errors: see
// write_chat; or the template's text depends on more than the turns before, so that no turn can just go on.
Result<ChatTurn> next_turn(const ChatTemplate& chat_template, const std::string& message);

}  // namespace kvant
