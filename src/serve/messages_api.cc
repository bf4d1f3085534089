#include "serve/messages_api.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "base/json_reader.h"
#include "serve/api_response.h"
#include "serve/chat_messages.h"
#include "serve/chat_tools.h"
#include "serve/json_fields.h"
#include "serve/tool_answer.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMaxTemperature = 2;

// --- requests ---

// The text of a block of text.
std::string block_text(JsonFields& block) {
  block.accept_only("type", {"text"}, "only blocks of text and of tools can be read");
  return block.text("text").value_or("");
}

// Calls read(block, type, where) for each block of a list.
template <class Read>
void read_blocks(const Json& blocks, const std::string& where, JsonFields& fields, Read read) {
  for (std::size_t i = 0; i < blocks.size() && !fields.error(); ++i) {
    const std::string block_name = fmt::format("{}[{}]", where, i);
    JsonFields block(blocks[i], block_name);
    block.value("cache_control");
    const Json* type = block.value("type");
    read(block, type == nullptr || !type->is_string() ? "" : type->get<std::string>(), block_name);
    block.refuse_others();
    fields.fail(block.error());
  }
}

// A text, or the texts of a list of blocks.
std::string blocks_text(const Json* content, const std::string& where, JsonFields& fields) {
  if (content != nullptr && content->is_string()) return content->get<std::string>();
  std::string text;
  if (content == nullptr || !content->is_array())
    fields.fail(where, fmt::format("'{}' must be a text or a list of blocks", where));
  if (fields.error()) return text;
  read_blocks(*content, where, fields,
              [&](JsonFields& block, const std::string&, const std::string&) { text += block_text(block); });
  return text;
}

Json tool_use_call(JsonFields& block, const std::string& where) {
  const std::string id = block.text("id").value_or(""), name = block.text("name").value_or("");
  const Json* input = block.value("input");
  if (input != nullptr && !input->is_object())
    block.fail("input", fmt::format("'{}.input' must be an object", where));
  return {{"id", id},
          {"type", "function"},
          {"function", {{"name", name}, {"arguments", input == nullptr ? "{}" : input->dump()}}}};
}

// What a tool gave is a turn of its own, before what the user says with it.
void add_tool_result(JsonFields& block, const std::string& where, ChatHistory& conversation) {
  const Json* content = block.value("content");
  const std::string text = content == nullptr ? "" : blocks_text(content, where + ".content", block);
  const bool is_error = block.boolean("is_error").value_or(false);
  conversation.add("tool", is_error ? "error: " + text : text);
  conversation.json.back()["tool_call_id"] = block.text("tool_use_id").value_or("");
  conversation.calls_tools = true;
}

void read_turn(const Json& json, const std::string& where, JsonFields& fields, ChatHistory& conversation) {
  JsonFields message(json, where);
  const std::string role = message.text("role").value_or("");
  if (role != "user" && role != "assistant")
    message.fail("role", fmt::format("'{}.role' must be user or assistant", where));
  const Json* content = message.value("content");
  message.refuse_others();
  fields.fail(message.error());
  if (fields.error()) return;
  if (content == nullptr || !content->is_array())
    return conversation.add(role, blocks_text(content, where + ".content", fields));
  std::string text;
  bool has_text = false;
  Json calls = Json::array();
  const auto read = [&](JsonFields& block, const std::string& type, const std::string& block_name) {
    if (type == "tool_use" && role == "assistant") {
      calls.push_back(tool_use_call(block, block_name));
    } else if (type == "tool_result" && role == "user") {
      add_tool_result(block, block_name, conversation);
    } else {
      text += block_text(block);
      has_text = true;
    }
  };
  read_blocks(*content, where + ".content", fields, read);
  if (!has_text && calls.empty() && !content->empty()) return;  // what tools gave alone
  conversation.add(role, text);
  if (calls.empty()) return;
  conversation.json.back()["tool_calls"] = std::move(calls);
  conversation.calls_tools = true;
}

ChatHistory read_conversation(JsonFields& fields) {
  ChatHistory conversation;
  if (const Json* system = fields.value("system"))
    conversation.add("system", blocks_text(system, "system", fields));
  const Json* list = fields.value("messages");
  if (list == nullptr || !list->is_array() || list->empty()) {
    fields.fail("messages", "'messages' must be a list of messages, one at least");
    return conversation;
  }
  for (std::size_t i = 0; i < list->size() && !fields.error(); ++i)
    read_turn((*list)[i], fmt::format("messages[{}]", i), fields, conversation);
  if (!fields.error() && conversation.messages.back().role == "assistant")
    fields.fail("messages", "the last message must be the user's: answers can't be begun for the model");
  return conversation;
}

// --- tools ---

void read_messages_tool_choice(JsonFields& fields, ChatTools& tools) {
  const Json* json = fields.value("tool_choice");
  if (json == nullptr) return;
  JsonFields choice(*json, "tool_choice");
  const std::string type = choice.text("type").value_or("");
  const std::string name = choice.text("name").value_or("");
  if (const auto single = choice.boolean("disable_parallel_tool_use")) tools.parallel = !*single;
  choice.refuse_others();
  if (type == "none") {
    tools.choice = ChatTools::Choice::none;
  } else if (type == "any") {
    tools.choice = ChatTools::Choice::required;
    if (tools.functions.empty()) choice.fail("type", "'tool_choice' wants a tool, and there are no 'tools'");
  } else if (type == "tool") {
    choose_function(name, "name", choice, tools);
  } else if (type != "auto") {
    choice.fail("type", "'tool_choice.type' must be auto, any, tool or none");
  }
  fields.fail(choice.error());
}

ChatTools read_messages_tools(JsonFields& fields) {
  ChatTools tools;
  SchemaSum schemas;
  if (const Json* list = fields.value("tools")) {
    if (!list->is_array() || list->size() > kMaxTools)
      fields.fail("tools", fmt::format("'tools' must be a list of at most {} tools", kMaxTools));
    for (std::size_t i = 0; list->is_array() && i < list->size() && !fields.error(); ++i) {
      const std::string where = fmt::format("tools[{}]", i);
      JsonFields tool((*list)[i], where);
      tool.accept_only("type", {"custom"}, "the server has no tools of its own");
      tool.value("cache_control");
      add_function(tool, "input_schema", where, tools, schemas);
      fields.fail(tool.error());
    }
  }
  if (!fields.error()) read_messages_tool_choice(fields, tools);
  return tools;
}

GenerationRequest read_options(JsonFields& fields, ApiRequest& request) {
  GenerationRequest options;
  request.model = fields.text("model").value_or("");
  request.stream = fields.boolean("stream").value_or(false);
  SamplerOptions& sampling = options.sampling;
  sampling.temperature = static_cast<float>(fields.number("temperature", 0, kMaxTemperature).value_or(1));
  sampling.top_p = static_cast<float>(fields.number("top_p", 0, 1).value_or(1));
  sampling.top_k = static_cast<int>(fields.integer("top_k", 0, INT32_MAX).value_or(0));
  sampling.min_p = 0;
  sampling.seed = std::random_device()();
  if (sampling.top_p <= 0) fields.fail("top_p", "'top_p' must be above 0 and at most 1");
  const auto max_tokens = fields.integer("max_tokens", 1, INT32_MAX);
  if (!max_tokens) fields.fail("max_tokens", "'max_tokens' is missing: say how long the answer may be");
  options.generation.max_tokens = static_cast<int>(max_tokens.value_or(1));
  options.generation.stops = fields.texts("stop_sequences", kMaxStops);
  options.guard = fields.boolean("guard").value_or(false);
  if (const Json* metadata = fields.value("metadata")) {
    JsonFields about(*metadata, "metadata");
    options.client = about.text("user_id").value_or("");
    fields.fail(about.error());
  }
  return options;
}

// --- answers ---

Json usage_json(const TokenUsage& usage) {
  Json json = {{"input_tokens", usage.prompt - usage.cached},
               {"cache_creation_input_tokens", 0},
               {"cache_read_input_tokens", usage.cached},
               {"output_tokens", usage.generated}};
  if (usage.guard) json["guard"] = guard_json(*usage.guard);
  return json;
}

const char* error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 503:
      return "overloaded_error";
    default:
      return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

std::string event(const char* type, Json data) {
  Json json = {{"type", type}};
  json.update(data);
  return fmt::format("event: {}\n{}", type, sse_event(response_text(json)));
}

}  // namespace

ParsedRequest parse_messages_request(const Json& body, const Tokenizer& tokenizer,
                                     const ChatTemplate* chat_template) {
  JsonFields fields(body);
  ApiRequest request{.is_chat = true};
  const ChatHistory conversation = read_conversation(fields);
  GenerationRequest prompt = read_options(fields, request);
  const ChatTools tools = read_messages_tools(fields);
  fields.accept_only("thinking", {Json::object({{"type", "disabled"}})}, "answers are text alone");
  fields.accept_only("service_tier", {"auto", "standard_only"}, "there is one tier");
  fields.refuse_others();
  if (fields.error()) return *fields.error();
  request.stops = prompt.generation.stops;
  if (auto failure = set_chat_prompt(conversation, tools, tokenizer, chat_template, request, prompt))
    return *std::move(failure);
  request.prompts.push_back(std::move(prompt));
  return request;
}

std::string messages_error(const ApiError& error) {
  return response_text(
      {{"type", "error"}, {"error", {{"type", error_type(error.status)}, {"message", error.message}}}});
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
  text_ += more.text;
  join_calls(std::move(more.calls), calls_);
}

Json MessagesResponse::stop_json() const {
  const bool by_text = std::ranges::find(stops_, last_.stop) != stops_.end();
  const bool is_cut = last_.end == GenerationEnd::length && (reader_ == nullptr || !reader_->is_complete());
  const char* reason = is_cut                                       ? "max_tokens"
                       : reader_ != nullptr && reader_->has_calls() ? "tool_use"
                       : by_text                                    ? "stop_sequence"
                                                                    : "end_turn";
  return {{"stop_reason", reason}, {"stop_sequence", by_text ? Json(last_.stop) : Json(nullptr)}};
}

Json MessagesResponse::whole(const TokenUsage& usage) const {
  Json content = Json::array();
  if (!text_.empty() || calls_.empty()) content.push_back({{"type", "text"}, {"text", text_}});
  for (const ToolCallPart& call : calls_) {
    // Of an answer that was cut, the arguments may be.
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
  open_block_ = kNoBlock;
  return event("content_block_stop", {{"index", n_blocks_ - 1}});
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
  return close_block() + event("message_delta", {{"delta", stop_json()}, {"usage", usage_json(usage)}}) +
         event("message_stop", Json::object());
}

std::string messages_error_event(const ApiError& error) {
  return "event: error\n" + sse_event(messages_error(error));
}

}  // namespace kvant
