#include "serve/chat_turns.h"

#include <fmt/format.h>

#include "serve/call_arguments.h"
#include "serve/message_parts.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

std::string function_name(JsonFields& function) {
  std::string name = function.text("name").value_or("");
  if (name.empty()) function.fail_missing("name", "the function that was called");
  return name;
}

Json read_turn_call(const Json& json, const std::string& where, JsonFields& message) {
  JsonFields call(json, where);
  call.accept_only("type", {"function"}, "tools are functions");
  const std::string id = call.text("id").value_or("");
  const Json* called = call.value("function");
  if (called == nullptr) call.fail_missing("function", "its name and arguments");
  message.fail(call.error());
  if (message.error()) return nullptr;
  JsonFields function(*called, where + ".function");
  const std::string name = function_name(function);
  message.fail(function.error());
  return call_json(id, name, function.value("arguments"));
}

// Reads an assistant's call from `function_call`, the API's older name for tool calls.
Json read_older_call(const Json& json, const std::string& where, JsonFields& message) {
  JsonFields function(json, where);
  const std::string name = function_name(function);
  message.fail(function.error());
  return call_json("", name, function.value("arguments"));
}

Json read_calls(JsonFields& message, const std::string& role, const std::string& where) {
  Json calls = Json::array();
  const Json* list = message.list("tool_calls", "calls");
  if (list != nullptr && !list->empty() && role != "assistant")
    message.fail("tool_calls", fmt::format("'{}' has 'tool_calls', which only an assistant makes", where));
  for (std::size_t i = 0; list != nullptr && i < list->size() && !message.error(); ++i)
    calls.push_back(read_turn_call((*list)[i], fmt::format("{}.tool_calls[{}]", where, i), message));
  const Json* older = message.value("function_call");
  if (older != nullptr && role == "assistant" && !message.error())
    calls.push_back(read_older_call(*older, where + ".function_call", message));
  return calls;
}

// Maps a message's role to one of the four roles that chat templates know.
std::string role_of(JsonFields& message) {
  const std::string role = message.text("role").value_or("");
  if (role == "developer") return "system";
  if (role == "function") return "tool";
  return message.word("role", {"system", "user", "assistant", "tool"}, JsonFields::Missing::is_wrong);
}

// Refuses media in a message, because a model that reads only text would miss a part of the meaning.
void refuse_media(JsonFields& message, const std::string& where) {
  for (const char* key : {"audio", "images", "image", "video", "files"}) {
    const Json* media = message.value(key);
    if (media != nullptr && !media->empty())
      message.fail(key, fmt::format("'{}.{}' is not supported: only text can be read", where, key),
                   kUnsupportedParameter);
  }
}

}  // namespace

void read_chat_turn(const Json& json, const std::string& where, JsonFields& fields,
                    ChatHistory& conversation) {
  JsonFields message(json, where);
  const std::string role = role_of(message);
  const Json* content = message.value("content");
  if (content == nullptr && (role == "system" || role == "user")) message.fail_missing("content", "a text");
  MessageText said = read_parts(message, where);
  if (said.text.empty()) said.text = message.text("refusal").value_or("");
  Json calls = read_calls(message, role, where);
  refuse_media(message, where);
  if (role == "assistant") {
    const auto thought = message.text("reasoning_content");
    add_thought(thought ? *thought : message.text("reasoning").value_or(""), said.thought);
  }
  conversation.add(role, said.text);
  Json& written = conversation.json.back();
  if (!said.thought.empty()) written["reasoning_content"] = said.thought;
  if (const auto name = message.text("name")) written["name"] = *name;
  if (role == "tool") written["tool_call_id"] = message.text("tool_call_id").value_or("");
  conversation.calls_tools = conversation.calls_tools || !calls.empty() || role == "tool";
  if (!calls.empty()) written["tool_calls"] = std::move(calls);
  message.leave_others();
  fields.take(message);
}

}  // namespace kvant
