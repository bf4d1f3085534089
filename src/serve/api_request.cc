#include "serve/api_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "serve/answer_format.h"
#include "serve/chat_messages.h"
#include "serve/chat_request.h"
#include "serve/chat_tools.h"
#include "serve/infill_prompt.h"
#include "serve/json_fields.h"
#include "serve/parameter_rule.h"
#include "serve/request_options.h"
#include "serve/session_folder.h"
#include "serve/text_prompts.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxAnswers = 128;
constexpr int kMaxAlternatives = 20;

// Reads the maximum length of the completion, for which OpenAI's API has two names and llama-server has a
// third name. Returns -1 if the request has no such parameter. `lowest` is the smallest valid value.
int read_max_tokens(JsonFields& fields, int lowest) {
  std::optional<std::int64_t> wanted;
  for (const char* name : {"max_tokens", "max_completion_tokens", "n_predict"}) {
    // In llama-server, -1 means no limit and -2 means up to the end of the context.
    fields.means_default(name, {-1, -2});
    const auto tokens = fields.integer(name, lowest, INT32_MAX);
    if (wanted && tokens && *wanted != *tokens)
      fields.fail(name, fmt::format("'{}' differs from 'max_tokens': give only one of them", name));
    if (tokens) wanted = tokens;
  }
  return static_cast<int>(wanted.value_or(-1));
}

void read_stream_options(JsonFields& fields, ApiRequest& request) {
  const Json* json = fields.value("stream_options");
  if (json == nullptr) return;
  if (!request.stream) fields.fail("stream_options", "'stream_options' needs 'stream': true");
  JsonFields options(*json, "stream_options");
  request.include_usage = options.boolean("include_usage").value_or(false);
  options.leave_others();
  fields.take(options);
}

// Reads every parameter except the prompt and `logprobs`. All completions of a request share these options.
GenerationRequest read_common(JsonFields& fields, const Tokenizer& tokenizer, const ApiLimits& limits,
                              ApiRequest& request) {
  GenerationRequest common = read_request_options(fields, "stop", tokenizer, limits, request);
  common.n_answers = static_cast<int>(fields.integer("n", 1, kMaxAnswers).value_or(1));
  common.client = read_user(fields);
  if (const auto session = fields.text("session")) {
    if (!is_session_name(*session)) fields.fail("session", kSessionNameRule);
    common.session = *session;
  }
  read_stream_options(fields, request);
  return common;
}

// Reads OpenAI's `prediction`, a text that the completion may resemble: {"type": "content", "content": a text
// or a list of text parts}. Speculative decoding drafts from the text, so matching tokens come sooner.
std::vector<std::int32_t> read_prediction(JsonFields& fields, const Tokenizer& tokenizer) {
  const Json* json = fields.value("prediction");
  if (json == nullptr) return {};
  const Json* content = json->is_object() && json->contains("content") ? &(*json)["content"] : nullptr;
  std::string text;
  bool is_text = content != nullptr && (content->is_string() || content->is_array());
  if (is_text && content->is_string()) text = content->get<std::string>();
  if (is_text && content->is_array()) {
    for (const Json& part : *content) {
      is_text = is_text && part.is_object() && part.contains("text") && part["text"].is_string();
      if (is_text) text += part["text"].get<std::string>();
    }
  }
  if (!is_text || json->value("type", Json("content")) != "content") {
    fields.fail("prediction", "'prediction' must be {\"type\": \"content\", \"content\": TEXT}",
                is_text ? kInvalidValue : kInvalidType);
    return {};
  }
  auto tokens = tokenizer.encode(text, /*add_special=*/false, /*parse_special=*/false);
  return tokens.ok() ? std::move(tokens).value() : std::vector<std::int32_t>();
}

void wants_probabilities(ApiRequest& request, GenerationRequest& common, int alternatives) {
  request.wants_probabilities = true;
  common.generation.wants_probabilities = true;
  common.generation.alternatives = alternatives;
}

void read_chat_probabilities(JsonFields& fields, ApiRequest& request, GenerationRequest& common) {
  fields.means_default("logprobs", {0});
  const bool wanted = fields.boolean("logprobs").value_or(false);
  const auto alternatives = fields.integer("top_logprobs", 0, kMaxAlternatives);
  if (alternatives && *alternatives > 0 && !wanted)
    fields.fail("top_logprobs", "'top_logprobs' needs 'logprobs': true");
  if (wanted) wants_probabilities(request, common, static_cast<int>(alternatives.value_or(0)));
}

// Reads how long completions may be, whether they repeat the prompt, and which probabilities the request
// wants. A request that only scores a text generates no token.
void read_completion_extent(JsonFields& fields, ApiRequest& request, GenerationRequest& common) {
  common.generation.max_tokens = read_max_tokens(fields, 0);
  fields.means_default("logprobs", {false});
  if (const auto alternatives = fields.integer("logprobs", 0, kMaxAlternatives))
    wants_probabilities(request, common, static_cast<int>(*alternatives));
  common.echo = fields.boolean("echo").value_or(false);
  if (common.wants_prompt_probabilities() && !common.session.empty())
    fields.fail("echo",
                "a session does not keep the probabilities of its prompt: leave out 'session' or 'echo'");
}

}  // namespace

ParsedRequest parse_chat_request(const Json& body, const Tokenizer& tokenizer, const ApiLimits& limits) {
  JsonFields fields(body);
  ApiRequest request{.is_chat = true, .parameter = "messages"};
  Chat chat{.conversation = read_messages(fields),
            .options = read_common(fields, tokenizer, limits, request)};
  chat.options.generation.max_tokens = read_max_tokens(fields, 1);
  read_chat_probabilities(fields, request, chat.options);
  chat.tools = read_tools(fields);
  chat.format = read_answer_format(fields);
  chat.options.expected = read_prediction(fields, tokenizer);
  return chat_request(fields, std::move(chat), std::move(request), tokenizer, limits);
}

ParsedRequest parse_completion_request(const Json& body, const Tokenizer& tokenizer,
                                       const ApiLimits& limits) {
  JsonFields fields(body);
  ApiRequest request;
  GenerationRequest common = read_common(fields, tokenizer, limits, request);
  read_completion_extent(fields, request, common);
  fields.means_default("best_of", {common.n_answers});
  const AnswerFormat format = read_answer_format(fields);
  const PromptReading reading = read_prompt_reading(fields);
  std::vector<TextPrompt> prompts = read_prompts(fields, "prompt", reading, tokenizer, limits);
  if (common.echo && !reading.suffix.empty())
    fields.fail("echo", "'echo' is not supported with 'suffix': leave out 'echo'");
  if (!reading.suffix.empty())
    std::ranges::move(infill_stops(tokenizer), std::back_inserter(common.generation.stops));
  common.text_has_special_tokens = reading.parse_special;
  if (!common.session.empty() && prompts.size() > 1)
    fields.fail("prompt", "a session continues with one prompt: send the others without 'session'");
  apply_parameter_rule(fields, limits.log);
  if (fields.error()) return *fields.error();
  if (auto failure = set_grammar(format, tokenizer, common)) return *std::move(failure);
  for (TextPrompt& prompt : prompts) {
    request.prompts.push_back(common);
    request.prompts.back().prompt = std::move(prompt.tokens);
    request.prompts.back().text = std::move(prompt.text);
  }
  return request;
}

}  // namespace kvant
