#include "serve/messages_api.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/json_reader.h"
#include "serve/answer_format.h"
#include "serve/api_response.h"
#include "serve/chat_request.h"
#include "serve/chat_tools.h"
#include "serve/json_fields.h"
#include "serve/messages_turns.h"
#include "serve/request_options.h"
#include "serve/thinking_fields.h"
#include "serve/tool_answer.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

// Clients send thoughts back only if a thought has a signature. The server treats thoughts as text and does
// not check the signature.
constexpr const char* kSignature = "kvant";

void read_messages_tool_choice(JsonFields& fields, ChatTools& tools) {
  const Json* json = fields.value("tool_choice");
  if (json == nullptr) return;
  JsonFields choice(*json, "tool_choice");
  const std::string type =
      choice.word("type", {"auto", "any", "tool", "none"}, JsonFields::Missing::is_wrong);
  if (const auto single = choice.boolean("disable_parallel_tool_use")) tools.parallel = !*single;
  if (type == "none") {
    tools.choice = ChatTools::Choice::none;
  } else if (type == "any") {
    tools.choice = ChatTools::Choice::required;
    if (tools.functions.empty())
      choice.fail("type", "'tool_choice' asks for a tool, but there are no 'tools'");
  } else if (type == "tool") {
    choose_function(choice, tools);
  }
  choice.leave_others();
  fields.take(choice);
}

ChatTools read_messages_tools(JsonFields& fields) {
  ChatTools tools;
  SchemaCost schemas;
  const Json* list = fields.list("tools", "tools");
  for (std::size_t i = 0; list != nullptr && i < list->size() && !fields.error(); ++i) {
    const std::string where = fmt::format("tools[{}]", i);
    JsonFields tool((*list)[i], where);
    tool.accept_only("type", {"custom"}, "the server has no tools of its own");
    tool.value("cache_control");
    add_function(tool, "input_schema", where, tools, schemas);
    fields.take(tool);
  }
  if (!fields.error()) read_messages_tool_choice(fields, tools);
  return tools;
}

GenerationRequest read_options(JsonFields& fields, const Tokenizer& tokenizer, const ApiLimits& limits,
                               ApiRequest& request) {
  GenerationRequest options = read_request_options(fields, "stop_sequences", tokenizer, limits, request);
  const auto max_tokens = fields.integer("max_tokens", 1, INT32_MAX);
  if (!max_tokens) fields.fail_missing("max_tokens", "the maximum number of tokens of the message");
  options.generation.max_tokens = static_cast<int>(max_tokens.value_or(1));
  if (const Json* metadata = fields.value("metadata")) {
    JsonFields about(*metadata, "metadata");
    options.client = about.text("user_id").value_or("");
    about.leave_others();
    fields.take(about);
  }
  return options;
}

// Reads the completion's format in `output_config`. The member `effort` belongs to the thoughts, which
// read_messages_thinking() reads.
AnswerFormat read_output_format(JsonFields& fields) {
  const Json* json = fields.value("output_config");
  if (json == nullptr) return {};
  JsonFields config(*json, "output_config");
  config.value("effort");
  AnswerFormat format;
  if (const Json* wanted = config.value("format"))
    format = read_flat_format(*wanted, "output_config.format", config);
  config.leave_others();
  fields.take(config);
  return format;
}

Json usage_json(const TokenUsage& usage) {
  Json json = {{"input_tokens", usage.prompt - usage.cached},
               {"cache_creation_input_tokens", 0},
               {"cache_read_input_tokens", usage.cached},
               {"output_tokens", usage.generated}};
  if (usage.guard) json["guard"] = guard_json(*usage.guard);
  return json;
}

std::string event(const char* type, const Json& data) {
  Json json = {{"type", type}};
  json.update(data);
  return fmt::format("event: {}\n{}", type, sse_event(response_text(json)));
}

}  // namespace

ParsedRequest parse_messages_request(const Json& body, const Tokenizer& tokenizer, const ApiLimits& limits) {
  JsonFields fields(body);
  ApiRequest request{.is_chat = true, .parameter = "messages"};
  Chat chat{.conversation = read_conversation(fields)};
  chat.conversation.thinking = read_messages_thinking(fields);
  chat.options = read_options(fields, tokenizer, limits, request);
  chat.tools = read_messages_tools(fields);
  chat.format = read_output_format(fields);
  request.stops = chat.options.generation.stops;
  return chat_request(fields, std::move(chat), std::move(request), tokenizer, limits);
}

MessagesResponse::MessagesResponse(std::string model, std::shared_ptr<const ToolFormat> tool_format,
                                   std::vector<std::string> stops)
    : model_(std::move(model)),
      id_(random_id("msg_")),
      tool_format_(std::move(tool_format)),
      reader_(tool_format_ == nullptr ? nullptr : tool_format_->read()),
      stops_(std::move(stops)) {}

AnswerDelta MessagesResponse::read(const AnswerPart& part) {
  last_ = part;
  return read_part(reader_.get(), part);
}

void MessagesResponse::add(const AnswerPart& part) {
  AnswerDelta more = read(part);
  thought_ += more.thought;
  text_ += more.text;
  join_calls(std::move(more.calls), calls_);
}

Json MessagesResponse::stop_json() const {
  const bool by_text = std::ranges::find(stops_, last_.stop) != stops_.end();
  const char* reason = was_cut(reader_.get(), last_.end)            ? "max_tokens"
                       : reader_ != nullptr && reader_->has_calls() ? "tool_use"
                       : by_text                                    ? "stop_sequence"
                                                                    : "end_turn";
  return {{"stop_reason", reason}, {"stop_sequence", by_text ? Json(last_.stop) : Json(nullptr)}};
}

Json MessagesResponse::whole(const TokenUsage& usage) const {
  Json content = Json::array();
  if (!thought_.empty())
    content.push_back({{"type", "thinking"}, {"thinking", thought_}, {"signature", kSignature}});
  if (!text_.empty() || (calls_.empty() && thought_.empty()))
    content.push_back({{"type", "text"}, {"text", text_}});
  for (const ToolCallPart& call : calls_) {
    // The arguments of a call are incomplete if a token limit cut the completion off.
    auto parsed = parse_json(call.arguments);
    Json input = parsed.ok() && parsed->is_object() ? std::move(parsed).value() : Json::object();
    content.push_back(
        {{"type", "tool_use"}, {"id", call.id}, {"name", call.name}, {"input", std::move(input)}});
  }
  Json json = {{"id", id_},
               {"type", "message"},
               {"role", "assistant"},
               {"model", model_},
               {"content", std::move(content)}};
  json.update(stop_json());
  json["usage"] = usage_json(usage);
  return json;
}

std::string MessagesResponse::open_block(Json block, int call) {
  std::string events = close_block();
  open_block_ = call;
  return events + event("content_block_start", {{"index", n_blocks_++}, {"content_block", std::move(block)}});
}

std::string MessagesResponse::close_block() {
  if (open_block_ == kNoBlock) return "";
  std::string events;
  if (open_block_ == kThoughtBlock)
    events = block_delta({{"type", "signature_delta"}, {"signature", kSignature}});
  open_block_ = kNoBlock;
  return events + event("content_block_stop", {{"index", n_blocks_ - 1}});
}

std::string MessagesResponse::block_delta(Json delta) const {
  return event("content_block_delta", {{"index", n_blocks_ - 1}, {"delta", std::move(delta)}});
}

std::string MessagesResponse::start_events(const TokenUsage& usage) {
  const Json message = {{"id", id_},
                        {"type", "message"},
                        {"role", "assistant"},
                        {"model", model_},
                        {"content", Json::array()},
                        {"stop_reason", nullptr},
                        {"stop_sequence", nullptr},
                        {"usage", usage_json({.prompt = usage.prompt, .cached = usage.cached})}};
  std::string events = event("message_start", {{"message", message}});
  if (reader_ == nullptr) events += open_block({{"type", "text"}, {"text", ""}}, kTextBlock);
  return events;
}

std::string MessagesResponse::part_events(const AnswerPart& part) {
  const AnswerDelta more = read(part);
  std::string events;
  if (!more.thought.empty()) {
    if (open_block_ != kThoughtBlock)
      events += open_block({{"type", "thinking"}, {"thinking", ""}, {"signature", ""}}, kThoughtBlock);
    events += block_delta({{"type", "thinking_delta"}, {"thinking", more.thought}});
  }
  if (!more.text.empty()) {
    if (open_block_ != kTextBlock) events += open_block({{"type", "text"}, {"text", ""}}, kTextBlock);
    events += block_delta({{"type", "text_delta"}, {"text", more.text}});
  }
  for (const ToolCallPart& call : more.calls) {
    if (open_block_ != call.index) {
      events +=
          open_block({{"type", "tool_use"}, {"id", call.id}, {"name", call.name}, {"input", Json::object()}},
                     call.index);
    }
    if (!call.arguments.empty())
      events += block_delta({{"type", "input_json_delta"}, {"partial_json", call.arguments}});
  }
  return events;
}

std::string MessagesResponse::end_events(const TokenUsage& usage) {
  // A stream must have at least one content block, like a whole message.
  std::string events = n_blocks_ == 0 ? open_block({{"type", "text"}, {"text", ""}}, kTextBlock) : "";
  events += close_block();
  return events + event("message_delta", {{"delta", stop_json()}, {"usage", usage_json(usage)}}) +
         event("message_stop", Json::object());
}

}  // namespace kvant
