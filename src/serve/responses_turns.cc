#include "serve/responses_turns.h"

#include <fmt/format.h>

#include <utility>

#include "serve/call_arguments.h"
#include "serve/chat_turns.h"
#include "serve/message_parts.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

class Items {
 public:
  explicit Items(ChatHistory& conversation) : conversation_(conversation) {}

  void read(const Json& json, const std::string& where, JsonFields& fields) {
    JsonFields item(json, where);
    const std::string type = item.text("type").value_or("message");
    if (type == "message") {
      read_message(json, where, item);
    } else if (type == "reasoning") {
      read_thought(item, where);
    } else if (type == "function_call") {
      read_call(item);
    } else if (type == "function_call_output") {
      read_output(item, where);
    } else {
      item.fail("type", fmt::format("'{}' has the type '{}', but only messages, function calls, their "
                                    "outputs and reasoning are supported: leave it out",
                                    where, type));
    }
    fields.fail(item.error());
  }

 private:
  void read_message(const Json& json, const std::string& where, JsonFields& item) {
    read_chat_turn(json, where, item, conversation_);
    Json& turns = conversation_.json;
    if (item.error()) return;
    if (turns.back()["role"] == "assistant") set_thought(turns.back());
    thought_.clear();
    // Many chat templates allow only one system message, at the start, so two system messages are joined.
    if (turns.size() == 2 && turns[0]["role"] == "system" && turns[1]["role"] == "system") {
      turns[0]["content"] =
          turns[0]["content"].get<std::string>() + "\n\n" + turns[1]["content"].get<std::string>();
      turns.erase(1);
    }
  }

  // Reads the thought of a reasoning item. An item whose content is hidden from the client has only a
  // summary, which then serves as the thought.
  void read_thought(JsonFields& item, const std::string& where) {
    const std::string content = read_parts(item, where).thought;
    const std::string summary = read_parts(item, where, "summary").thought;
    add_thought(content.empty() ? summary : content, thought_);
  }

  void read_call(JsonFields& item) {
    const std::string name = item.text("name").value_or("");
    if (name.empty()) item.fail_missing("name", "the function that was called");
    const std::string id = item.text("call_id").value_or("");
    Json& turns = conversation_.json;
    const bool goes_on = thought_.empty() && !turns.empty() && turns.back()["role"] == "assistant";
    if (!goes_on) conversation_.add("assistant", "");
    set_thought(turns.back());
    turns.back()["tool_calls"].push_back(call_json(id, name, item.value("arguments")));
    conversation_.calls_tools = true;
  }

  void read_output(JsonFields& item, const std::string& where) {
    thought_.clear();
    conversation_.add("tool", read_parts(item, where, "output").text);
    conversation_.json.back()["tool_call_id"] = item.text("call_id").value_or("");
    conversation_.calls_tools = true;
  }

  void set_thought(Json& turn) {
    if (!thought_.empty()) turn["reasoning_content"] = std::exchange(thought_, "");
  }

  ChatHistory& conversation_;
  std::string thought_;  // the thought belongs to the turn that follows
};

}  // namespace

ChatHistory read_input(JsonFields& fields) {
  ChatHistory conversation;
  if (const auto instructions = fields.text("instructions"); instructions && !instructions->empty())
    conversation.add("system", *instructions);
  const Json* input = fields.value("input");
  if (input != nullptr && input->is_string()) {
    conversation.add("user", input->get<std::string>());
  } else if (input != nullptr && input->is_array() && !input->empty()) {
    Items items(conversation);
    for (std::size_t i = 0; i < input->size() && !fields.error(); ++i)
      items.read((*input)[i], fmt::format("input[{}]", i), fields);
  } else {
    fields.fail("input", "'input' must be a text or a list of at least one item",
                input == nullptr    ? kMissingParameter
                : input->is_array() ? kInvalidValue
                                    : kInvalidType);
  }
  return conversation;
}

}  // namespace kvant
