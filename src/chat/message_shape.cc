#include "chat/message_shape.h"

#include <initializer_list>
#include <string>

#include "base/json_reader.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kThoughts = "reasoning_content";

bool mentions(const TemplateProgram& program, std::initializer_list<const char*> texts) {
  for (const char* text : texts) {
    if (program.source().find(text) != std::string::npos) return true;
  }
  return false;
}

Json parts_of(const std::string& text) {
  return Json::array({{{"type", "text"}, {"text", text}}});
}

void set_arguments(Json& call, bool as_object) {
  Json& arguments = call["function"]["arguments"];
  if (!as_object) {
    if (!arguments.is_string()) arguments = arguments.dump();
  } else if (arguments.is_string()) {
    auto parsed = parse_json(arguments.get<std::string>());
    if (parsed.ok() && parsed->is_object()) arguments = std::move(parsed).value();
  }
}

// Moves a message's thoughts to the member that the template reads.
void rename_thoughts(Json& message, const TemplateProgram& program) {
  if (!message.contains(kThoughts) || mentions(program, {kThoughts})) return;
  const Json thoughts = message[kThoughts];
  if (mentions(program, {"block['thinking']"})) {
    message.erase(kThoughts);
    Json content = Json::array({{{"type", "thinking"}, {"thinking", thoughts}}});
    if (message["content"].is_string() && !message["content"].get<std::string>().empty())
      content.push_back(parts_of(message["content"])[0]);
    message["content"] = std::move(content);
  } else if (mentions(program, {"message.thinking", "message['thinking']", "message[\"thinking\"]"})) {
    message.erase(kThoughts);
    message["thinking"] = thoughts;
  } else if (mentions(program, {"message.reasoning", "message['reasoning']", "message[\"reasoning\"]"})) {
    message.erase(kThoughts);
    message["reasoning"] = thoughts;
  }
}

void shape_message(Json& message, const TemplateProgram& program) {
  const TemplateAbilities& can = program.abilities();
  if (!message.contains("content") || message["content"].is_null()) message["content"] = "";
  if (!can.text_content) message["content"] = parts_of(message["content"]);
  rename_thoughts(message, program);
}

}  // namespace

Json read_arguments(const Json& messages, const TemplateProgram& program) {
  Json read = messages;
  for (Json& message : read) {
    if (!message.contains("tool_calls")) continue;
    for (Json& call : message["tool_calls"]) set_arguments(call, program.abilities().object_arguments);
  }
  return read;
}

Json shape_messages(const Json& messages, const TemplateProgram& program) {
  Json shaped = messages;
  if (!program.abilities().system_messages && shaped.size() > 1 && shaped[0]["role"] == "system") {
    shaped[1]["content"] =
        shaped[0]["content"].get<std::string>() + "\n" + shaped[1]["content"].get<std::string>();
    shaped.erase(shaped.begin());
  }
  for (Json& message : shaped) shape_message(message, program);
  return shaped;
}

}  // namespace kvant
