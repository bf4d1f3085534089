// Makes the text of a chat's next turn if the earlier turns are known only as tokens. A turn is the
// difference between two renderings of a made-up chat.
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

// Returns the template's text between a completion and the next completion. The text ends the assistant's
// turn, holds the user's turn with `message`, and starts the assistant's next turn. Returns an error if
// write_chat() does, or if the template changes earlier turns, because the text then cannot be appended.
Result<ChatTurn> next_turn(const ChatTemplate& chat_template, const std::string& message);

}  // namespace kvant
