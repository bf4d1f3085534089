#include "chat/chat_turn.h"

#include "chat/chat_history.h"

namespace kvant {

// Renders a made-up conversation, in which the text before the new turn is known and can be removed.
Result<ChatTurn> next_turn(const ChatTemplate& chat_template, const std::string& message) {
  const std::string said = "a";
  ChatHistory history;
  history.add("user", "q");
  const auto before = chat_template.write(history.json);
  if (!before.ok()) return before.error();
  history.add("assistant", said);
  history.add("user", message);
  const auto after = chat_template.write(history.json);
  if (!after.ok()) return after.error();
  const std::string answered = before->text + said;
  if (!after->text.starts_with(answered))
    return error(
        "the model's chat template changes earlier turns when a new one comes, so a session can't continue: "
        "give the text as it is, with --raw");
  auto tokens = chat_template.encode(*after, answered.size());
  if (!tokens.ok()) return tokens.error();
  return ChatTurn{after->text.substr(answered.size()), std::move(tokens).value()};
}

}  // namespace kvant
