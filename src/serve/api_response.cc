#include "serve/api_response.h"

#include <fmt/format.h>

#include <chrono>
#include <random>

#include "serve/text_logprobs.h"
#include "serve/tool_answer.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

Json usage_json(const TokenUsage& usage) {
  Json json = {{"prompt_tokens", usage.prompt},
               {"completion_tokens", usage.generated},
               {"total_tokens", usage.prompt + usage.generated},
               {"prompt_tokens_details", {{"cached_tokens", usage.cached}}},
               {"completion_tokens_details",
                {{"accepted_prediction_tokens", usage.accepted},
                 {"rejected_prediction_tokens", usage.drafted - usage.accepted}}}};
  if (usage.guard) json["guard"] = guard_json(*usage.guard);
  return json;
}

Json whole_call(const ToolCallPart& call) {
  return {{"id", call.id},
          {"type", "function"},
          {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
}

// A stream sends a call's name and id only once, in the call's first chunk.
Json call_delta(const ToolCallPart& call) {
  Json json = {{"index", call.index}};
  if (!call.name.empty()) {
    json.update(whole_call(call));
  } else {
    json["function"] = {{"arguments", call.arguments}};
  }
  return json;
}

Json bytes_of(const std::string& text) {
  Json bytes = Json::array();
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

}  // namespace

Json guard_json(const GuardTally& tally) {
  return {{"tokens", tally.tokens}, {"differing", tally.differing}, {"mean_kld", tally.mean_kld()}};
}

std::string random_id(const char* prefix) {
  std::random_device random;
  return fmt::format("{}{:08x}{:08x}{:08x}", prefix, random(), random(), random());
}

std::string response_text(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string sse_event(const std::string& data) {
  return "data: " + data + "\n\n";
}

ApiResponse::ApiResponse(const Tokenizer& tokenizer, bool is_chat, bool wants_probabilities,
                         std::shared_ptr<const ToolFormat> tool_format, std::string model,
                         std::string fingerprint)
    : tokenizer_(tokenizer),
      is_chat_(is_chat),
      wants_probabilities_(wants_probabilities),
      tool_format_(std::move(tool_format)),
      model_(std::move(model)),
      fingerprint_(std::move(fingerprint)),
      id_(random_id(is_chat ? "chatcmpl-" : "cmpl-")),
      created_(std::chrono::duration_cast<std::chrono::seconds>(
                   std::chrono::system_clock::now().time_since_epoch())
                   .count()) {}

ApiResponse::Choice& ApiResponse::choice(int number) {
  while (number >= std::ssize(choices_)) {
    Choice& added = choices_.emplace_back();
    if (tool_format_ != nullptr) added.reader = tool_format_->read();
  }
  return choices_[number];
}

Json ApiResponse::finish_reason(const Choice& choice, GenerationEnd end) {
  if (end == GenerationEnd::none) return nullptr;
  const ToolAnswer* reader = choice.reader.get();
  if (was_cut(reader, end)) return "length";
  return reader != nullptr && reader->has_calls() ? "tool_calls" : "stop";
}

Json ApiResponse::envelope(const char* object) const {
  return {{"id", id_},
          {"object", object},
          {"created", created_},
          {"model", model_},
          {"system_fingerprint", fingerprint_}};
}

Json ApiResponse::chat_token(const TokenProbability& token) const {
  const std::string piece = tokenizer_.piece(token.token);
  return {{"token", piece}, {"logprob", token.log_probability}, {"bytes", bytes_of(piece)}};
}

Json ApiResponse::shadow_token(const ShadowToken& shadow) const {
  return {{"token", tokenizer_.piece(shadow.token)}, {"kld", shadow.kld}};
}

Json ApiResponse::chat_probabilities(std::span<const ReportedToken> tokens) const {
  Json content = Json::array();
  for (const ReportedToken& token : tokens) {
    Json entry = chat_token(token.chosen);
    entry["top_logprobs"] = Json::array();
    for (const TokenProbability& other : token.alternatives)
      entry["top_logprobs"].push_back(chat_token(other));
    if (token.shadow) entry["guard"] = shadow_token(*token.shadow);
    content.push_back(std::move(entry));
  }
  return {{"content", content}, {"refusal", nullptr}};
}

// The text of the prompt may lack the first token's piece, such as <s> or an added space. The first
// token then begins at a negative offset, for which clients get 0.
void ApiResponse::start_echo(const AnswerPart& part, Choice& choice) const {
  if (!part.is_prompt) return;
  std::string spelled;
  for (const ReportedToken& token : part.tokens) spelled += tokenizer_.piece(token.chosen.token);
  if (spelled.ends_with(part.text)) choice.offset = begun_characters(part.text) - begun_characters(spelled);
}

Json ApiResponse::probabilities(std::span<const ReportedToken> tokens, std::int64_t& offset) const {
  if (!wants_probabilities_) return nullptr;
  if (is_chat_) return chat_probabilities(tokens);
  Json result = text_logprobs(tokenizer_, tokens, offset);
  for (const ReportedToken& token : tokens) {
    if (token.shadow) result["guard"].push_back(shadow_token(*token.shadow));
  }
  return result;
}

Json ApiResponse::chunk(int number, const AnswerPart& part) {
  Choice& c = choice(number);
  const AnswerDelta more = read_part(c.reader.get(), part);
  const bool is_last = part.end != GenerationEnd::none;
  const bool has_news =
      !more.thought.empty() || !more.text.empty() || !more.calls.empty() || !part.tokens.empty();
  if (c.started && !is_last && !has_news) return nullptr;
  Json json = {{"index", number}};
  if (is_chat_) {
    Json delta = Json::object();
    if (!c.started) delta["role"] = "assistant";
    if (!more.thought.empty()) delta["reasoning_content"] = more.thought;
    if (!more.text.empty() || (!c.started && more.thought.empty())) delta["content"] = more.text;
    for (const ToolCallPart& call : more.calls) delta["tool_calls"].push_back(call_delta(call));
    json["delta"] = std::move(delta);
  } else {
    json["text"] = part.text;
  }
  c.started = true;
  start_echo(part, c);
  json["logprobs"] = probabilities(part.tokens, c.offset);
  json["finish_reason"] = finish_reason(c, part.end);
  Json result = envelope(is_chat_ ? "chat.completion.chunk" : "text_completion");
  result["choices"] = Json::array({std::move(json)});
  return result;
}

Json ApiResponse::usage_chunk(const TokenUsage& usage) const {
  Json result = envelope(is_chat_ ? "chat.completion.chunk" : "text_completion");
  result["choices"] = Json::array();
  result["usage"] = usage_json(usage);
  return result;
}

void ApiResponse::add(int number, const AnswerPart& part) {
  Choice& c = choice(number);
  AnswerDelta more = read_part(c.reader.get(), part);
  c.thought += more.thought;
  c.text += more.text;
  join_calls(std::move(more.calls), c.calls);
  start_echo(part, c);
  c.tokens.insert(c.tokens.end(), part.tokens.begin(), part.tokens.end());
  c.end = part.end;
}

Json ApiResponse::whole(const TokenUsage& usage) const {
  Json result = envelope(is_chat_ ? "chat.completion" : "text_completion");
  result["choices"] = Json::array();
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    const Choice& c = choices_[i];
    Json json = {{"index", i}};
    if (is_chat_) {
      const bool is_call_alone = c.text.empty() && c.reader != nullptr && c.reader->has_calls();
      json["message"] = {
          {"role", "assistant"}, {"content", is_call_alone ? Json() : Json(c.text)}, {"refusal", nullptr}};
      if (!c.thought.empty()) json["message"]["reasoning_content"] = c.thought;
      for (const ToolCallPart& call : c.calls) json["message"]["tool_calls"].push_back(whole_call(call));
    } else {
      json["text"] = c.text;
    }
    std::int64_t offset = c.offset;
    json["logprobs"] = probabilities(c.tokens, offset);
    json["finish_reason"] = finish_reason(c, c.end);
    result["choices"].push_back(std::move(json));
  }
  result["usage"] = usage_json(usage);
  return result;
}

}  // namespace kvant
