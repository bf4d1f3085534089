#include "serve/chat_messages.h"

#include <fmt/format.h>

#include "base/json_reader.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

// A text, or the texts of an array of parts.
std::string content_text(JsonFields& message, bool may_be_missing) {
  const Json* content = message.value("content");
  if (content == nullptr) {
    if (may_be_missing) return "";
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

Json read_tool_call(const Json& json, const std::string& where, JsonFields& message) {
  JsonFields call(json, where);
  call.accept_only("type", {"function"}, "tools are functions");
  const std::string id = call.text("id").value_or("");
  call.value("index");  // of a stream's parts, which some clients leave in
  const Json* called = call.value("function");
  if (called == nullptr) call.fail("function", fmt::format("'{}.function' is missing", where));
  call.refuse_others();
  message.fail(call.error());
  if (message.error()) return nullptr;
  JsonFields function(*called, where + ".function");
  const std::string name = function.text("name").value_or("");
  const std::string arguments = function.text("arguments").value_or("{}");
  if (const auto parsed = parse_json(arguments); !parsed.ok() || !parsed->is_object())
    function.fail("arguments", fmt::format("'{}.function.arguments' must be a JSON object as a text", where));
  function.refuse_others();
  message.fail(function.error());
  return {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", arguments}}}};
}

void read_message(const Json& json, const std::string& where, JsonFields& fields, ChatHistory& into) {
  JsonFields message(json, where);
  std::string role = message.text("role").value_or("");
  if (role == "developer") role = "system";
  if (role != "system" && role != "user" && role != "assistant" && role != "tool")
    message.fail("role", fmt::format("'{}.role' must be system, user, assistant or tool", where));
  const Json* calls = message.value("tool_calls");
  if (calls != nullptr && (!calls->is_array() || (!calls->empty() && role != "assistant")))
    message.fail("tool_calls", fmt::format("'{}.tool_calls' must be a list, of an assistant", where));
  const bool has_calls = calls != nullptr && calls->is_array() && !calls->empty();
  into.add(role, content_text(message, has_calls));
  Json& written = into.json.back();
  for (std::size_t i = 0; has_calls && i < calls->size() && !message.error(); ++i)
    written["tool_calls"].push_back(
        read_tool_call((*calls)[i], fmt::format("{}.tool_calls[{}]", where, i), message));
  if (role == "tool") {
    written["tool_call_id"] = message.text("tool_call_id").value_or("");
    if (const auto name = message.text("name")) written["name"] = *name;
  }
  into.calls_tools = into.calls_tools || has_calls || role == "tool";
  // What an answer had beside its text, when a client sends it back.
  message.accept_only("annotations", {Json::array()}, "only text is read");
  message.refuse_others();
  fields.fail(message.error());
}

constexpr const char* kNoTools =
    "the model's chat template has no tools: start the server with --chat-template FILE, with one that has";

constexpr const char* kNoValues =
    "'chat_template_kwargs' are for a chat template that is run, and the model has none: leave them out, or "
    "start the server with --chat-template FILE";

// Reads what a template may ask for beside the messages.
void read_template_values(JsonFields& fields, ChatHistory& conversation) {
  constexpr const char* kKey = "chat_template_kwargs";
  const Json* values = fields.value(kKey);
  if (values == nullptr) return;
  if (!values->is_object()) return fields.fail(kKey, "'chat_template_kwargs' must be an object");
  if (values->contains("enable_thinking") && !(*values)["enable_thinking"].is_boolean())
    return fields.fail(kKey, "'chat_template_kwargs.enable_thinking' must be true or false");
  conversation.template_values = *values;
}

// What needs a template that is run: tools, what they gave, values for it, or a template of the user's.
Result<TemplatedChat> run_template(const ChatHistory& conversation, const ChatTools& tools,
                                   const ChatTemplate* chat_template) {
  const bool with_tools = tools.may_be_called() || conversation.calls_tools;
  if (chat_template == nullptr || (with_tools && !chat_template->has_tools())) return error("{}", kNoTools);
  return chat_template->apply(conversation.json, tools, conversation.template_values);
}

// As llama.cpp knows it by heart, unless that doesn't do.
Result<TemplatedChat> fill_template(const ChatHistory& conversation, const ChatTools& tools,
                                    const Tokenizer& tokenizer, const ChatTemplate* chat_template) {
  const bool has_values = !conversation.template_values.empty();
  if (has_values && (chat_template == nullptr || !chat_template->is_there())) return error("{}", kNoValues);
  if (tools.may_be_called() || conversation.calls_tools || has_values ||
      (chat_template != nullptr && chat_template->replaces_the_models()))
    return run_template(conversation, tools, chat_template);
  auto text = tokenizer.chat_prompt(conversation.messages);
  if (text.ok()) return TemplatedChat{.prompt = std::move(text).value()};
  if (chat_template == nullptr || !chat_template->is_there()) return text.error();
  return chat_template->apply(conversation.json, tools, conversation.template_values);
}

// The grammar at the answer's start.
Result<std::unique_ptr<Grammar>> answer_grammar(const TemplatedChat& chat, const Tokenizer& tokenizer) {
  auto grammar = Grammar::make(chat.grammar, tokenizer);
  if (!grammar.ok() || chat.grammar_start.empty()) return grammar;
  const auto start = tokenizer.encode(chat.grammar_start, /*add_special=*/false, /*parse_special=*/true);
  if (!start.ok()) return start.error();
  for (std::size_t i = 0; i < start->size(); ++i) {
    // Some tokenizers begin with a space that the text doesn't have.
    const bool is_added =
        i == 0 && tokenizer.piece((*start)[i]).starts_with(' ') && !chat.grammar_start.starts_with(' ');
    if (!is_added) KVANT_RETURN_IF_ERROR((*grammar)->accept((*start)[i]));
  }
  return grammar;
}

}  // namespace

ChatHistory read_messages(JsonFields& fields) {
  ChatHistory conversation;
  read_template_values(fields, conversation);
  const Json* json = fields.value("messages");
  if (json == nullptr || !json->is_array() || json->empty()) {
    fields.fail("messages", "'messages' must be a list of messages, one at least");
    return conversation;
  }
  for (std::size_t i = 0; i < json->size() && !fields.error(); ++i)
    read_message((*json)[i], fmt::format("messages[{}]", i), fields, conversation);
  return conversation;
}

Result<std::string> chat_text(const ChatHistory& conversation, const ChatTools& tools,
                              const Tokenizer& tokenizer, const ChatTemplate* chat_template) {
  auto chat = fill_template(conversation, tools, tokenizer, chat_template);
  if (!chat.ok()) return chat.error();
  return std::move(chat->prompt);
}

std::optional<ApiError> set_chat_prompt(const ChatHistory& conversation, const ChatTools& tools,
                                        const Tokenizer& tokenizer, const ChatTemplate* chat_template,
                                        ApiRequest& api_request, GenerationRequest& request) {
  const char* parameter = tools.may_be_called() ? "tools" : "messages";
  auto chat = fill_template(conversation, tools, tokenizer, chat_template);
  if (!chat.ok()) return ApiError{.message = chat.error().message, .parameter = parameter};
  auto tokens = tokenizer.encode(chat->prompt, /*add_special=*/true, /*parse_special=*/true);
  if (!tokens.ok()) return ApiError{.message = tokens.error().message, .parameter = parameter};
  if (!chat->grammar.empty()) {
    auto grammar = answer_grammar(*chat, tokenizer);
    if (!grammar.ok()) return ApiError{.message = grammar.error().message, .parameter = parameter};
    request.grammar = std::move(grammar).value();
  }
  request.generation.stops.insert(request.generation.stops.end(), chat->stops.begin(), chat->stops.end());
  api_request.tool_format = chat->format;
  request.prompt = std::move(tokens).value();
  request.text = std::move(chat->prompt);
  request.text_has_special_tokens = true;
  return std::nullopt;
}

}  // namespace kvant
