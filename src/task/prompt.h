// Turns texts and conversations into the tokens that a model reads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "chat/chat_history.h"
#include "chat/chat_template.h"
#include "model/tokenizer.h"

namespace kvant {

struct Prompt {
  std::string text;
  std::vector<std::int32_t> tokens;
};

// Encodes `text` without a chat template. Tokenizer::encode() explains add_special and parse_special.
Result<Prompt> encode_text(const Tokenizer& tokenizer, std::string text, bool add_special,
                           bool parse_special);
// Writes a conversation in a chat template, up to the point where the assistant continues. Returns an error
// if ChatTemplate::write() does.
Result<Prompt> chat_prompt(const ChatTemplate& chat_template, const ChatHistory& history);
// Writes a system message and a user's message in a chat template. If `system` is empty, there is no system
// message.
Result<Prompt> message_prompt(const ChatTemplate& chat_template, const std::string& system,
                              const std::string& message);

}  // namespace kvant
