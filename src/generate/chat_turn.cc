#include "generate/chat_turn.h"

namespace kvant {

// A conversation is made up whose text before the turn is known.
Result<std::string> next_turn(const Tokenizer& tokenizer, const std::string& message) {
  const ChatMessage question{"user", "q"}, answer{"assistant", "a"};
  const auto before = tokenizer.chat_prompt(std::vector{question});
  if (!before.ok()) return before.error();
  const auto after = tokenizer.chat_prompt(std::vector{question, answer, ChatMessage{"user", message}});
  if (!after.ok()) return after.error();
  const std::string answered = *before + answer.text;
  if (after->starts_with(answered)) return after->substr(answered.size());
  return error(
      "the model's chat template changes earlier turns when a new one comes, so that a session can't just go "
      "on: "
      "give the text as it is, with --raw");
}

}  // namespace kvant
