#include "serve/messages_turns.h"

#include <fmt/format.h>

#include "serve/call_arguments.h"
#include "serve/message_parts.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

// Calls read(block, type, where) for each content block of a list.
template <class Read>
void read_blocks(const Json& blocks, const std::string& where, JsonFields& fields, Read read) {
  for (std::size_t i = 0; i < blocks.size() && !fields.error(); ++i) {
    const std::string block_name = fmt::format("{}[{}]", where, i);
    JsonFields block(blocks[i], block_name);
    const std::string type = block.text("type").value_or("");
    if (!block.error()) read(block, type, block_name);
    block.leave_others();
    fields.take(block);
  }
}

// Returns the text of a text block, or the name of a tool that a tool search found.
std::string block_text(JsonFields& block, const std::string& type, const std::string& where) {
  if (type == "text") return block.text("text").value_or("");
  if (type == "tool_reference") return block.text("tool_name").value_or("");
  refuse_part(block, type, where);
  return "";
}

// Returns the content as one text. The content is either a text or a list of blocks with texts.
std::string blocks_text(const Json* content, const std::string& where, JsonFields& fields) {
  if (content != nullptr && content->is_string()) return content->get<std::string>();
  std::string text;
  if (content == nullptr || !content->is_array())
    fields.fail(where, fmt::format("'{}' must be a text or a list of blocks", where),
                content == nullptr ? kMissingParameter : kInvalidType);
  if (fields.error()) return text;
  read_blocks(*content, where, fields,
              [&](JsonFields& block, const std::string& type, const std::string& block_name) {
                text += block_text(block, type, block_name);
              });
  return text;
}

Json tool_use_call(JsonFields& block) {
  const std::string id = block.text("id").value_or(""), name = block.text("name").value_or("");
  return call_json(id, name, block.value("input"));
}

// Adds a tool's result as a separate turn. The turn precedes the user's text in the same message.
void add_tool_result(JsonFields& block, const std::string& where, ChatHistory& conversation) {
  const Json* content = block.value("content");
  const std::string text = content == nullptr ? "" : blocks_text(content, where + ".content", block);
  const bool is_error = block.boolean("is_error").value_or(false);
  conversation.add("tool", is_error ? "error: " + text : text);
  conversation.json.back()["tool_call_id"] = block.text("tool_use_id").value_or("");
  conversation.calls_tools = true;
}

// Turn collects the blocks of a message except for tool results.
struct Turn {
  MessageText said;
  bool has_text = false;
  Json calls = Json::array();
};

void read_block(JsonFields& block, const std::string& type, const std::string& where, const std::string& role,
                Turn& turn, ChatHistory& conversation) {
  if (type == "tool_use" && role == "assistant") {
    turn.calls.push_back(tool_use_call(block));
  } else if (type == "thinking" && role == "assistant") {
    add_thought(block.text("thinking").value_or(""), turn.said.thought);
  } else if (type == "redacted_thinking" && role == "assistant") {
    // Only Anthropic's servers can decrypt the block, so it is ignored.
  } else if (type == "tool_result" && role == "user") {
    add_tool_result(block, where, conversation);
  } else {
    turn.said.text += block_text(block, type, where);
    turn.has_text = true;
  }
}

void read_turn(const Json& json, const std::string& where, JsonFields& fields, ChatHistory& conversation) {
  JsonFields message(json, where);
  const std::string role =
      message.word("role", {"user", "assistant", "system"}, JsonFields::Missing::is_wrong);
  const Json* content = message.value("content");
  message.leave_others();
  fields.take(message);
  if (fields.error()) return;
  if (content == nullptr || !content->is_array())
    return conversation.add(role, blocks_text(content, where + ".content", fields));
  Turn turn;
  read_blocks(*content, where + ".content", fields,
              [&](JsonFields& block, const std::string& type, const std::string& block_name) {
                read_block(block, type, block_name, role, turn, conversation);
              });
  const bool is_result_alone = role == "user" && !turn.has_text && !content->empty();
  if (is_result_alone) return;
  conversation.add(role, turn.said.text);
  Json& written = conversation.json.back();
  if (!turn.said.thought.empty()) written["reasoning_content"] = turn.said.thought;
  if (turn.calls.empty()) return;
  written["tool_calls"] = std::move(turn.calls);
  conversation.calls_tools = true;
}

}  // namespace

ChatHistory read_conversation(JsonFields& fields) {
  ChatHistory conversation;
  if (const Json* system = fields.value("system"))
    conversation.add("system", blocks_text(system, "system", fields));
  const Json* list = fields.filled_list("messages", "messages");
  for (std::size_t i = 0; list != nullptr && i < list->size() && !fields.error(); ++i)
    read_turn((*list)[i], fmt::format("messages[{}]", i), fields, conversation);
  return conversation;
}

}  // namespace kvant
