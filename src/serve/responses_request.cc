#include "serve/responses_request.h"

#include <fmt/format.h>

#include <algorithm>

#include "serve/chat_request.h"
#include "serve/chat_tools.h"
#include "serve/request_options.h"
#include "serve/responses_turns.h"
#include "serve/thinking_fields.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxTypeName = 40;  // bytes; the log has at most this much of a type's name

// Reads the tools. Tools that the server cannot run are left out. A model need not call any tool, so its
// completions are valid without them.
ChatTools read_responses_tools(JsonFields& fields) {
  ChatTools tools;
  SchemaCost schemas;
  const Json* list = fields.list("tools", "tools");
  for (std::size_t i = 0; list != nullptr && i < list->size() && !fields.error(); ++i) {
    const std::string where = fmt::format("tools[{}]", i);
    JsonFields tool((*list)[i], where);
    const std::string type = tool.text("type").value_or("");
    if (type == "function") {
      add_function(tool, "parameters", where, tools, schemas);
    } else if (type.empty()) {
      tool.fail_missing("type", "function");
    } else {
      tools.loosened.push_back(fmt::format("tools of the type '{}' are ignored: only functions can be called",
                                           type.substr(0, kMaxTypeName)));
    }
    fields.take(tool);
  }
  if (!fields.error()) read_tool_choice(fields, nullptr, tools);
  tools.parallel = fields.boolean("parallel_tool_calls");
  return tools;
}

AnswerFormat read_text_format(JsonFields& fields) {
  AnswerFormat format;
  const Json* json = fields.value("text");
  if (json == nullptr) return format;
  JsonFields text(*json, "text");
  if (const Json* wanted = text.value("format")) format = read_flat_format(*wanted, "text.format", text);
  text.leave_others();
  fields.take(text);
  return format;
}

// Refuses parameters of this API and of /v1/chat/completions that would change the response and that kvant
// does not have.
void refuse_what_is_not_there(JsonFields& fields) {
  constexpr const char* kNothingStored =
      "the server keeps no responses, so send the whole conversation as 'input'";
  fields.accept_only("previous_response_id", {""}, kNothingStored);
  fields.accept_only("conversation", {}, kNothingStored);
  fields.accept_only("prompt", {}, "the server keeps no prompts, so send 'instructions' and 'input'");
  fields.accept_only("background", {false}, "the server keeps no responses, so ask for a 'stream'");
  fields.accept_only("top_logprobs", {0}, "use /v1/chat/completions for probabilities");
  fields.accept_only("logprobs", {false}, "use /v1/chat/completions for probabilities");
  fields.accept_only("n", {1}, "a request has one response");
  fields.accept_only("messages", {}, "give 'input'");
  fields.accept_only("response_format", {}, "give 'text.format'");
  for (const char* name : {"max_tokens", "max_completion_tokens"})
    fields.accept_only(name, {}, "give 'max_output_tokens'");
  const std::vector<std::string> wanted = fields.texts("include", 64);
  if (std::ranges::find(wanted, "message.output_text.logprobs") != wanted.end())
    fields.fail("include", "'include' asks for probabilities, which /v1/chat/completions has",
                kUnsupportedParameter);
}

GenerationRequest read_options(JsonFields& fields, const Tokenizer& tokenizer, const ApiLimits& limits,
                               ApiRequest& request) {
  GenerationRequest options = read_request_options(fields, "stop", tokenizer, limits, request);
  fields.means_default("max_output_tokens", {-1});
  options.generation.max_tokens =
      static_cast<int>(fields.integer("max_output_tokens", 1, INT32_MAX).value_or(-1));
  options.client = read_user(fields);
  return options;
}

}  // namespace

ParsedRequest parse_responses_request(const Json& body, const Tokenizer& tokenizer, const ApiLimits& limits) {
  JsonFields fields(body);
  ApiRequest request{.is_chat = true, .parameter = "input"};
  Chat chat{.conversation = read_input(fields)};
  chat.conversation.thinking = read_chat_thinking(fields);
  chat.options = read_options(fields, tokenizer, limits, request);
  chat.tools = read_responses_tools(fields);
  chat.format = read_text_format(fields);
  refuse_what_is_not_there(fields);
  return chat_request(fields, std::move(chat), std::move(request), tokenizer, limits);
}

}  // namespace kvant
