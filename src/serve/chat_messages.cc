#include "serve/chat_messages.h"

#include <fmt/format.h>

#include "serve/chat_turns.h"
#include "serve/thinking_fields.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kNoTools =
    "the model's chat template does not support tools: start the server with --chat-template FILE and a "
    "template that does";

constexpr const char* kNoTemplate =
    "the model's file has no chat template: start the server with --chat-template FILE, or use "
    "/v1/completions";

// The server sets some variables of a template itself. A request that sets them would replace the
// conversation, and could write control tokens into it.
void refuse_own_values(const Json& values, const char* where, JsonFields& fields) {
  JsonFields own(values, where);
  for (const char* name : {"messages", "tools"})
    own.accept_only(name, {}, "give this parameter outside of 'chat_template_kwargs'");
  for (const char* name : {"bos_token", "eos_token"})
    own.accept_only(name, {}, "the model's file sets this token");
  own.accept_only("add_generation_prompt", {true}, "the prompt ends where the assistant's message begins");
  fields.take(own);
}

// Reads the values that a chat template may use in addition to the messages.
void read_template_values(JsonFields& fields, ChatHistory& conversation) {
  constexpr const char* kKey = "chat_template_kwargs";
  const Json* values = fields.value(kKey);
  if (values == nullptr) return;
  if (!values->is_object())
    return fields.fail(kKey, "'chat_template_kwargs' must be an object", kInvalidType);
  if (values->contains("enable_thinking") && !(*values)["enable_thinking"].is_boolean())
    return fields.fail(kKey, "'chat_template_kwargs.enable_thinking' must be true or false", kInvalidType);
  refuse_own_values(*values, kKey, fields);
  conversation.template_values = *values;
}

Result<TemplatedChat> fill_template(const ChatHistory& conversation, const ChatTools& tools,
                                    const ChatTemplate* chat_template) {
  if (chat_template == nullptr) return error("{}", kNoTemplate);
  const bool with_tools = tools.may_be_called() || conversation.calls_tools;
  if (with_tools && !chat_template->has_tools()) return error("{}", kNoTools);
  return chat_template->apply(conversation.json, tools, conversation.template_values, conversation.thinking);
}

// Returns the completion's grammar, advanced past the part of the completion that the prompt already
// contains.
Result<std::unique_ptr<Grammar>> answer_grammar(const TemplatedChat& chat, const Tokenizer& tokenizer) {
  auto grammar = Grammar::make(chat.grammar, tokenizer);
  if (!grammar.ok() || chat.grammar_start.empty()) return grammar;
  const auto start = tokenizer.encode(chat.grammar_start, /*add_special=*/false, /*parse_special=*/true);
  if (!start.ok()) return start.error();
  for (std::size_t i = 0; i < start->size(); ++i) {
    // Some tokenizers add a space before a text, which the grammar does not know.
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
  conversation.thinking = read_chat_thinking(fields);
  const Json* list = fields.filled_list("messages", "messages");
  for (std::size_t i = 0; list != nullptr && i < list->size() && !fields.error(); ++i)
    read_chat_turn((*list)[i], fmt::format("messages[{}]", i), fields, conversation);
  return conversation;
}

Result<std::string> chat_text(const ChatHistory& conversation, const ChatTools& tools,
                              const ChatTemplate* chat_template) {
  auto chat = fill_template(conversation, tools, chat_template);
  if (!chat.ok()) return chat.error();
  return std::move(chat->prompt);
}

std::optional<ApiError> set_chat_prompt(const ChatHistory& conversation, const ChatTools& tools,
                                        const Tokenizer& tokenizer, const ChatTemplate* chat_template,
                                        ApiRequest& api_request, GenerationRequest& request) {
  const char* parameter = tools.may_be_called() ? "tools" : "messages";
  auto chat = fill_template(conversation, tools, chat_template);
  if (!chat.ok()) return ApiError{.message = chat.error().message, .parameter = parameter};
  if (!chat->grammar.empty()) {
    auto grammar = answer_grammar(*chat, tokenizer);
    if (!grammar.ok()) return ApiError{.message = grammar.error().message, .parameter = parameter};
    request.grammar = std::move(grammar).value();
  }
  request.generation.stops.insert(request.generation.stops.end(), chat->stops.begin(), chat->stops.end());
  request.generation.kept_tokens = std::move(chat->kept_tokens);
  api_request.tool_format = chat->format;
  request.prompt = std::move(chat->tokens);
  // Sessions make tokens from this text, and a quoted control token in the text would become a real control
  // token. The text is therefore kept only if it quotes no tokens.
  if (!chat->quotes_tokens) request.text = std::move(chat->prompt);
  request.text_has_special_tokens = true;
  return std::nullopt;
}

}  // namespace kvant
