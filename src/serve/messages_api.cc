#include "serve/messages_api.h"

#include <fmt/format.h>

#include <random>

#include "serve/api_response.h"
#include "serve/chat_messages.h"
#include "serve/json_fields.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMaxTemperature = 2;

// --- requests ---

// A text, or the texts of a list of blocks.
std::string blocks_text(const Json* content, const std::string& where, JsonFields& fields) {
  if (content != nullptr && content->is_string()) return content->get<std::string>();
  std::string text;
  if (content == nullptr || !content->is_array())
    fields.fail(where, fmt::format("'{}' must be a text or a list of blocks", where));
  if (fields.error()) return text;
  for (std::size_t i = 0; i < content->size(); ++i) {
    JsonFields block((*content)[i], fmt::format("{}[{}]", where, i));
    block.accept_only("type", {"text"}, "only blocks of text can be read");
    text += block.text("text").value_or("");
    block.value("cache_control");
    block.refuse_others();
    fields.fail(block.error());
  }
  return text;
}

ChatMessage read_turn(const Json& json, const std::string& where, JsonFields& fields) {
  JsonFields message(json, where);
  const std::string role = message.text("role").value_or("");
  if (role != "user" && role != "assistant")
    message.fail("role", fmt::format("'{}.role' must be user or assistant", where));
  const Json* content = message.value("content");
  message.refuse_others();
  fields.fail(message.error());
  return {role, blocks_text(content, where + ".content", fields)};
}

std::vector<ChatMessage> read_conversation(JsonFields& fields) {
  std::vector<ChatMessage> messages;
  if (const Json* system = fields.value("system"))
    messages.push_back({"system", blocks_text(system, "system", fields)});
  const Json* list = fields.value("messages");
  if (list == nullptr || !list->is_array() || list->empty()) {
    fields.fail("messages", "'messages' must be a list of messages, one at least");
    return messages;
  }
  for (std::size_t i = 0; i < list->size() && !fields.error(); ++i)
    messages.push_back(read_turn((*list)[i], fmt::format("messages[{}]", i), fields));
  if (!fields.error() && messages.back().role != "user")
    fields.fail("messages", "the last message must be the user's: answers can't be begun for the model");
  return messages;
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
  if (const Json* metadata = fields.value("metadata")) {
    JsonFields about(*metadata, "metadata");
    options.client = about.text("user_id").value_or("");
    fields.fail(about.error());
  }
  return options;
}

// --- answers ---

Json usage_json(int n_prompt, int n_cached, int n_generated) {
  return {{"input_tokens", n_prompt - n_cached},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", n_cached},
          {"output_tokens", n_generated}};
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

ParsedRequest parse_messages_request(const Json& body, const Tokenizer& tokenizer) {
  JsonFields fields(body);
  ApiRequest request{.is_chat = true};
  const std::vector<ChatMessage> messages = read_conversation(fields);
  GenerationRequest prompt = read_options(fields, request);
  fields.accept_only("tools", {Json::array()}, "tools are not supported yet");
  fields.accept_only("tool_choice", {Json::object({{"type", "none"}})}, "tools are not supported yet");
  fields.accept_only("thinking", {Json::object({{"type", "disabled"}})}, "answers are text alone");
  fields.accept_only("service_tier", {"auto", "standard_only"}, "there is one tier");
  fields.refuse_others();
  if (fields.error()) return *fields.error();
  if (auto failure = set_chat_prompt(messages, tokenizer, prompt)) return *std::move(failure);
  request.prompts.push_back(std::move(prompt));
  return request;
}

std::string messages_error(const ApiError& error) {
  return response_text(
      {{"type", "error"}, {"error", {{"type", error_type(error.status)}, {"message", error.message}}}});
}

MessagesResponse::MessagesResponse(std::string model, int n_prompt)
    : model_(std::move(model)), id_(random_id("msg_")), n_prompt_(n_prompt) {}

void MessagesResponse::add(const AnswerPart& part) {
  text_ += part.text;
  last_ = part;
}

Json MessagesResponse::stop_json() const {
  const bool by_text = !last_.stop.empty();
  const char* reason = last_.end == GenerationEnd::length ? "max_tokens"
                       : by_text                          ? "stop_sequence"
                                                          : "end_turn";
  return {{"stop_reason", reason}, {"stop_sequence", by_text ? Json(last_.stop) : Json(nullptr)}};
}

Json MessagesResponse::whole(const TokenUsage& usage) const {
  Json json = {{"id", id_},
               {"type", "message"},
               {"role", "assistant"},
               {"model", model_},
               {"content", Json::array({{{"type", "text"}, {"text", text_}}})}};
  json.update(stop_json());
  json["usage"] = usage_json(usage.prompt, usage.cached, usage.generated);
  return json;
}

std::string MessagesResponse::start_events() const {
  const Json message = {{"id", id_},
                        {"type", "message"},
                        {"role", "assistant"},
                        {"model", model_},
                        {"content", Json::array()},
                        {"stop_reason", nullptr},
                        {"stop_sequence", nullptr},
                        {"usage", usage_json(n_prompt_, 0, 0)}};
  return event("message_start", {{"message", message}}) +
         event("content_block_start", {{"index", 0}, {"content_block", {{"type", "text"}, {"text", ""}}}});
}

std::string MessagesResponse::part_event(const AnswerPart& part) const {
  if (part.text.empty()) return "";
  return event("content_block_delta",
               {{"index", 0}, {"delta", {{"type", "text_delta"}, {"text", part.text}}}});
}

std::string MessagesResponse::end_events(const TokenUsage& usage) const {
  return event("content_block_stop", {{"index", 0}}) +
         event("message_delta",
               {{"delta", stop_json()}, {"usage", usage_json(usage.prompt, usage.cached, usage.generated)}}) +
         event("message_stop", Json::object());
}

std::string messages_error_event(const ApiError& error) {
  return "event: error\n" + sse_event(messages_error(error));
}

}  // namespace kvant
