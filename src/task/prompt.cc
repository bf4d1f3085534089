#include "task/prompt.h"

#include "model/utf8.h"

namespace kvant {

Result<Prompt> encode_text(const Tokenizer& tokenizer, std::string text, bool add_special,
                           bool parse_special) {
  auto tokens = tokenizer.encode(text, add_special, parse_special);
  if (!tokens.ok()) return tokens.error();
  return Prompt{std::move(text), std::move(*tokens)};
}

Result<Prompt> chat_prompt(const Tokenizer& tokenizer, std::span<const ChatMessage> messages) {
  auto text = tokenizer.chat_prompt(messages);
  if (!text.ok()) return text.error();
  return encode_text(tokenizer, std::move(*text), /*add_special=*/true, /*parse_special=*/true);
}

Result<Prompt> message_prompt(const Tokenizer& tokenizer, const std::string& system,
                              const std::string& message) {
  KVANT_RETURN_IF_ERROR(check_message_text("the system message", system));
  KVANT_RETURN_IF_ERROR(check_message_text("the text", message));
  std::vector<ChatMessage> messages;
  if (!system.empty()) messages.push_back({"system", system});
  messages.push_back({"user", message});
  auto prompt = tokenizer.chat_prompt(messages);
  if (!prompt.ok()) return encode_text(tokenizer, message, /*add_special=*/true, /*parse_special=*/false);
  return encode_text(tokenizer, std::move(*prompt), /*add_special=*/true, /*parse_special=*/true);
}

}  // namespace kvant
