// Texts as a model reads them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/tokenizer.h"

namespace kvant {

struct Prompt {
  std::string text;
  std::vector<std::int32_t> tokens;
};

// A text as it is; see Tokenizer::encode.
Result<Prompt> encode_text(const Tokenizer& tokenizer, std::string text, bool add_special,
                           bool parse_special);
// A conversation in the model's chat template, up to where the assistant's answer starts. Errors: see
// Tokenizer::chat_prompt.
Result<Prompt> chat_prompt(const Tokenizer& tokenizer, std::span<const ChatMessage> messages);
// A user's message after a system message (empty: none); for a model without a chat template the message as
// it is.
Result<Prompt> message_prompt(const Tokenizer& tokenizer, const std::string& system,
                              const std::string& message);

}  // namespace kvant
