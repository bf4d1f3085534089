#include "serve/responses_answer.h"

#include <fmt/format.h>

#include <chrono>

#include "serve/api_response.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

std::int64_t seconds_since_1970() {
  using namespace std::chrono;
  return duration_cast<seconds>(system_clock::now().time_since_epoch()).count();
}

// Returns the member `key` of the request, or `otherwise` if the request has none. A response repeats some
// members of its request.
Json said_or(const Json& body, const char* key, Json otherwise) {
  const auto found = body.find(key);
  if (found == body.end() || found->is_null()) return otherwise;
  return *found;
}

Json usage_json(const TokenUsage& usage, int thought_tokens) {
  Json json = {{"input_tokens", usage.prompt},
               {"input_tokens_details", {{"cached_tokens", usage.cached}, {"cache_write_tokens", 0}}},
               {"output_tokens", usage.generated},
               {"output_tokens_details", {{"reasoning_tokens", thought_tokens}}},
               {"total_tokens", usage.prompt + usage.generated}};
  if (usage.guard) json["guard"] = guard_json(*usage.guard);
  return json;
}

}  // namespace

ResponsesAnswer::ResponsesAnswer(const Json& body, std::string model,
                                 const std::shared_ptr<const ToolFormat>& tool_format,
                                 const Tokenizer& tokenizer)
    : tokenizer_(tokenizer), reader_(tool_format == nullptr ? nullptr : tool_format->read()) {
  response_ = {{"id", random_id("resp_")},
               {"object", "response"},
               {"created_at", seconds_since_1970()},
               {"status", "in_progress"},
               {"background", false},
               {"error", nullptr},
               {"incomplete_details", nullptr},
               {"instructions", said_or(body, "instructions", nullptr)},
               {"max_output_tokens", said_or(body, "max_output_tokens", nullptr)},
               {"metadata", said_or(body, "metadata", Json::object())},
               {"model", std::move(model)},
               {"output", Json::array()},
               {"parallel_tool_calls", said_or(body, "parallel_tool_calls", true)},
               {"previous_response_id", nullptr},
               {"reasoning", said_or(body, "reasoning", {{"effort", nullptr}, {"summary", nullptr}})},
               {"store", false},
               {"temperature", said_or(body, "temperature", 1.0)},
               {"text", said_or(body, "text", {{"format", {{"type", "text"}}}})},
               {"tool_choice", said_or(body, "tool_choice", "auto")},
               {"tools", said_or(body, "tools", Json::array())},
               {"top_p", said_or(body, "top_p", 1.0)},
               {"truncation", "disabled"},
               {"usage", nullptr}};
}

std::string ResponsesAnswer::event(const char* type, const Json& data) {
  Json json = {{"type", type}, {"sequence_number", n_events_++}};
  json.update(data);
  return fmt::format("event: {}\n{}", type, sse_event(response_text(json)));
}

// Returns the members by which an event names the current output item and its one content part.
Json ResponsesAnswer::place() const {
  Json json = {{"item_id", item_["id"]}, {"output_index", response_["output"].size()}};
  if (kind_ < 0) json["content_index"] = 0;
  return json;
}

Json ResponsesAnswer::content_part() const {
  if (kind_ == kThought) return {{"type", "reasoning_text"}, {"text", text_}};
  return {
      {"type", "output_text"}, {"text", text_}, {"annotations", Json::array()}, {"logprobs", Json::array()}};
}

std::string ResponsesAnswer::open(int kind, Json item) {
  std::string events = close("completed");
  kind_ = kind;
  item_ = std::move(item);
  text_.clear();
  events +=
      event("response.output_item.added", {{"output_index", response_["output"].size()}, {"item", item_}});
  if (kind >= 0) return events;
  Json added = place();
  added["part"] = content_part();
  return events + event("response.content_part.added", added);
}

std::string ResponsesAnswer::add(const char* type, const std::string& more) {
  text_ += more;
  Json json = place();
  json["delta"] = more;
  if (kind_ == kText) json["logprobs"] = Json::array();
  return event(type, json);
}

std::string ResponsesAnswer::close(const char* status) {
  if (kind_ == kNone) return "";
  std::string events;
  Json done = place();
  if (kind_ >= 0) {
    done["name"] = item_["name"];
    done["arguments"] = item_["arguments"] = text_;
    events = event("response.function_call_arguments.done", done);
  } else {
    Json whole = done;
    whole["text"] = text_;
    if (kind_ == kText) whole["logprobs"] = Json::array();
    events = event(kind_ == kText ? "response.output_text.done" : "response.reasoning_text.done", whole);
    done["part"] = content_part();
    item_["content"] = Json::array({done["part"]});
    events += event("response.content_part.done", done);
  }
  if (kind_ == kThought) {
    const auto tokens = tokenizer_.encode(text_, /*add_special=*/false, /*parse_special=*/false);
    if (tokens.ok()) thought_tokens_ += static_cast<int>(tokens->size());
  }
  item_["status"] = status;
  events +=
      event("response.output_item.done", {{"output_index", response_["output"].size()}, {"item", item_}});
  response_["output"].push_back(std::move(item_));
  kind_ = kNone;
  return events;
}

std::string ResponsesAnswer::start_events() {
  const Json data = {{"response", response_}};
  std::string events = event("response.created", data);
  return events + event("response.in_progress", data);
}

std::string ResponsesAnswer::part_events(const AnswerPart& part) {
  const AnswerDelta more = read_part(reader_.get(), part);
  end_ = part.end;
  std::string events;
  if (!more.thought.empty()) {
    if (kind_ != kThought)
      events += open(kThought, {{"id", random_id("rs_")},
                                {"type", "reasoning"},
                                {"summary", Json::array()},
                                {"content", Json::array()},
                                {"encrypted_content", nullptr},
                                {"status", "in_progress"}});
    events += add("response.reasoning_text.delta", more.thought);
  }
  // A response must have at least one item, even if the completion is empty.
  const bool is_empty =
      part.end != GenerationEnd::none && kind_ == kNone && response_["output"].empty() && more.calls.empty();
  if (!more.text.empty() || is_empty) {
    if (kind_ != kText)
      events += open(kText, {{"id", random_id("msg_")},
                             {"type", "message"},
                             {"status", "in_progress"},
                             {"role", "assistant"},
                             {"content", Json::array()}});
    if (!more.text.empty()) events += add("response.output_text.delta", more.text);
  }
  for (const ToolCallPart& call : more.calls) {
    if (kind_ != call.index)
      events += open(call.index, {{"id", random_id("fc_")},
                                  {"type", "function_call"},
                                  {"status", "in_progress"},
                                  {"call_id", call.id},
                                  {"name", call.name},
                                  {"arguments", ""}});
    if (!call.arguments.empty()) events += add("response.function_call_arguments.delta", call.arguments);
  }
  return events;
}

std::string ResponsesAnswer::end_events(const TokenUsage& usage) {
  const bool is_cut = was_cut(reader_.get(), end_);
  const char* status = is_cut ? "incomplete" : "completed";
  std::string events = close(status);
  response_["status"] = status;
  if (is_cut) response_["incomplete_details"] = {{"reason", "max_output_tokens"}};
  response_["usage"] = usage_json(usage, thought_tokens_);
  return events + event(is_cut ? "response.incomplete" : "response.completed", {{"response", response_}});
}

std::string ResponsesAnswer::failure_event(const ApiError& error) {
  response_["status"] = "failed";
  response_["error"] = {{"code", "server_error"}, {"message", error.message}};
  return event("response.failed", {{"response", response_}});
}

}  // namespace kvant
