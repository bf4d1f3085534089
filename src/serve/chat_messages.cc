#include "serve/chat_messages.h"

#include <fmt/format.h>

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

// A text, or the texts of an array of parts.
std::string content_text(JsonFields& message) {
  const Json* content = message.value("content");
  if (content == nullptr) {
    message.fail("content", "a message has no content: give a text");
    return "";
  }
  if (content->is_string()) return content->get<std::string>();
  std::string text;
  if (!content->is_array()) message.fail("content", "a message's content must be a text or a list of parts");
  for (const Json& json : *content) {
    JsonFields part(json, "content");
    part.accept_only("type", {"text"}, "only parts of text can be read");
    text += part.text("text").value_or("");
    part.refuse_others();
    message.fail(part.error());
  }
  return text;
}

ChatMessage read_message(const Json& json, const std::string& where, JsonFields& fields) {
  JsonFields message(json, where);
  ChatMessage read{message.text("role").value_or(""), content_text(message)};
  if (read.role == "developer") read.role = "system";
  if (read.role == "tool" || read.role == "function") {
    message.fail("role", "tools are not supported yet: leave out what they said");
  } else if (read.role != "system" && read.role != "user" && read.role != "assistant") {
    message.fail("role", fmt::format("'{}.role' must be system, user or assistant", where));
  }
  // What an answer had beside its text, when a client sends it back.
  message.accept_only("tool_calls", {Json::array()}, "there are no tools yet");
  message.accept_only("annotations", {Json::array()}, "only text is read");
  message.refuse_others();
  fields.fail(message.error());
  return read;
}

}  // namespace

std::vector<ChatMessage> read_messages(JsonFields& fields) {
  std::vector<ChatMessage> messages;
  const Json* json = fields.value("messages");
  if (json == nullptr || !json->is_array() || json->empty()) {
    fields.fail("messages", "'messages' must be a list of messages, one at least");
    return messages;
  }
  for (std::size_t i = 0; i < json->size() && !fields.error(); ++i)
    messages.push_back(read_message((*json)[i], fmt::format("messages[{}]", i), fields));
  return messages;
}

std::optional<ApiError> set_chat_prompt(const std::vector<ChatMessage>& messages, const Tokenizer& tokenizer,
                                        GenerationRequest& request) {
  auto text = tokenizer.chat_prompt(messages);
  if (!text.ok()) return ApiError{.message = text.error().message, .parameter = "messages"};
  auto tokens = tokenizer.encode(*text, /*add_special=*/true, /*parse_special=*/true);
  if (!tokens.ok()) return ApiError{.message = tokens.error().message, .parameter = "messages"};
  request.prompt = std::move(tokens).value();
  request.text = std::move(text).value();
  request.text_has_special_tokens = true;
  return std::nullopt;
}

}  // namespace kvant
