#include "task/prompt.h"

#include "model/utf8.h"

namespace kvant {

Result<Prompt> encode_text(const Tokenizer& tokenizer, std::string text, bool add_special,
                           bool parse_special) {
  auto tokens = tokenizer.encode(text, add_special, parse_special);
  if (!tokens.ok()) return tokens.error();
  return Prompt{std::move(text), std::move(*tokens)};
}

Result<Prompt> chat_prompt(const ChatTemplate& chat_template, const ChatHistory& history) {
  auto chat = chat_template.write(history.json);
  if (!chat.ok()) return chat.error();
  auto tokens = chat_template.encode(*chat);
  if (!tokens.ok()) return tokens.error();
  return Prompt{std::move(chat->text), std::move(*tokens)};
}

Result<Prompt> message_prompt(const ChatTemplate& chat_template, const std::string& system,
                              const std::string& message) {
  KVANT_RETURN_IF_ERROR(check_message_text("the system message", system));
  KVANT_RETURN_IF_ERROR(check_message_text("the text", message));
  ChatHistory history;
  if (!system.empty()) history.add("system", system);
  history.add("user", message);
  return chat_prompt(chat_template, history);
}

}  // namespace kvant
