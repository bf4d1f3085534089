#include "serve/message_parts.h"

#include <fmt/format.h>

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

// Returns the text of a thought. Clients send a thought as a text, or as a list of parts with texts.
std::string thought_of(const Json* thought) {
  if (thought == nullptr) return "";
  if (thought->is_string()) return thought->get<std::string>();
  std::string text;
  for (const Json& part : *thought) {
    if (part.is_object() && part.contains("text") && part["text"].is_string())
      text += part["text"].get<std::string>();
  }
  return text;
}

void read_part(const Json& json, const std::string& where, JsonFields& message, MessageText& said) {
  if (json.is_string()) {
    said.text += json.get<std::string>();
    return;
  }
  JsonFields part(json, where);
  const std::string type = part.text("type").value_or("text");
  if (type == "text" || type == "input_text" || type == "output_text") {
    said.text += part.text("text").value_or("");
  } else if (type == "refusal") {
    said.text += part.text("refusal").value_or("");
  } else if (type == "thinking") {
    add_thought(thought_of(part.value("thinking")), said.thought);
  } else if (type == "reasoning" || type == "reasoning_text" || type == "summary_text") {
    add_thought(thought_of(part.value("text")), said.thought);
  } else {
    refuse_part(part, type, where);
  }
  part.leave_others();
  message.take(part);
}

}  // namespace

void refuse_part(JsonFields& part, const std::string& type, const std::string& where) {
  part.fail("type",
            fmt::format("'{}' has the type '{}', but only text is supported: leave it out", where, type));
}

void add_thought(const std::string& more, std::string& thought) {
  if (!thought.empty() && !more.empty()) thought += '\n';
  thought += more;
}

MessageText read_parts(JsonFields& message, const std::string& where, const char* key) {
  MessageText said;
  const Json* content = message.value(key);
  if (content == nullptr) return said;
  if (content->is_string()) {
    said.text = content->get<std::string>();
  } else if (content->is_array()) {
    for (std::size_t i = 0; i < content->size() && !message.error(); ++i)
      read_part((*content)[i], fmt::format("{}.{}[{}]", where, key, i), message, said);
  } else {
    message.fail(key, fmt::format("'{}.{}' must be a text or a list of parts", where, key), kInvalidType);
  }
  return said;
}

}  // namespace kvant
