#include "serve/api_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "serve/answer_format.h"
#include "serve/chat_messages.h"
#include "serve/chat_tools.h"
#include "serve/json_fields.h"
#include "serve/session_folder.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxAnswers = 128;
constexpr int kMaxAlternatives = 20;
constexpr double kHottest = 100;

// --- what both endpoints have ---

SamplerOptions read_sampling(JsonFields& fields) {
  SamplerOptions sampling;  // the API's defaults: as the model says
  sampling.temperature = static_cast<float>(fields.number("temperature", 0, kHottest).value_or(1));
  sampling.top_p = static_cast<float>(fields.number("top_p", 0, 1).value_or(1));
  sampling.min_p = static_cast<float>(fields.number("min_p", 0, 1).value_or(0));
  sampling.top_k = static_cast<int>(fields.integer("top_k", 0, INT32_MAX).value_or(0));
  const auto seed = fields.integer("seed", INT64_MIN, INT64_MAX);
  sampling.seed = seed ? static_cast<std::uint32_t>(*seed) : std::random_device()();
  return sampling;
}

int read_max_tokens(JsonFields& fields) {
  const auto max_tokens = fields.integer("max_tokens", 1, INT32_MAX);
  const auto newer_name = fields.integer("max_completion_tokens", 1, INT32_MAX);
  if (max_tokens && newer_name && *max_tokens != *newer_name)
    fields.fail("max_tokens", "'max_tokens' and 'max_completion_tokens' differ: give one of them");
  return static_cast<int>(max_tokens ? *max_tokens : newer_name.value_or(-1));
}

void read_stream(JsonFields& fields, ApiRequest& request) {
  request.stream = fields.boolean("stream").value_or(false);
  const Json* json = fields.value("stream_options");
  if (json == nullptr) return;
  if (!request.stream) fields.fail("stream_options", "'stream_options' needs 'stream': true");
  JsonFields options(*json, "stream_options");
  request.include_usage = options.boolean("include_usage").value_or(false);
  options.refuse_others();
  fields.fail(options.error());
}

// What kvant doesn't do (yet). A value that asks for nothing is taken: clients send their defaults.
void refuse_unsupported(JsonFields& fields) {
  fields.accept_only("presence_penalty", {0}, "answers are drawn without penalties");
  fields.accept_only("frequency_penalty", {0}, "answers are drawn without penalties");
  fields.accept_only("repeat_penalty", {1}, "answers are drawn without penalties");
  fields.accept_only("logit_bias", {Json::object()}, "answers are drawn without a bias");
  fields.accept_only("cache_prompt", {true}, "what is read of prompts is always kept");
  fields.accept_only("store", {false}, "answers are not stored");
  fields.accept_only("metadata", {Json::object()}, "answers are not stored");
  fields.accept_only("service_tier", {"auto", "default"}, "there is one tier");
}

// The options of all answers to one request. Reads all parameters but the prompt and `logprobs`.
GenerationRequest read_common(JsonFields& fields, ApiRequest& request) {
  GenerationRequest common;
  request.model = fields.text("model").value_or("");
  common.sampling = read_sampling(fields);
  if (common.sampling.top_p <= 0) fields.fail("top_p", "'top_p' must be above 0 and at most 1");
  common.n_answers = static_cast<int>(fields.integer("n", 1, kMaxAnswers).value_or(1));
  common.generation.max_tokens = read_max_tokens(fields);
  common.generation.stops = fields.texts("stop", kMaxStops);
  const auto user = fields.text("user"), user_now = fields.text("safety_identifier");
  common.client = user.value_or(user_now.value_or(""));
  fields.text("prompt_cache_key");  // what is kept of prompts is found by their tokens
  common.guard = fields.boolean("guard").value_or(false);
  if (const auto session = fields.text("session")) {
    if (!is_session_name(*session)) fields.fail("session", kSessionNameRule);
    common.session = *session;
  }
  read_stream(fields, request);
  refuse_unsupported(fields);
  return common;
}

// What the answers may be. Rules from a schema may be more than can be read, too.
std::optional<ApiError> set_grammar(const GrammarRules& rules, const char* parameter,
                                    const Tokenizer& tokenizer, GenerationRequest& request) {
  if (rules.empty()) return std::nullopt;
  auto grammar = Grammar::make(rules, tokenizer);
  if (!grammar.ok()) return ApiError{.message = grammar.error().message, .parameter = parameter};
  request.grammar = std::move(grammar).value();
  return std::nullopt;
}

void wants_probabilities(ApiRequest& request, GenerationRequest& common, int alternatives) {
  request.wants_probabilities = true;
  common.generation.wants_probabilities = true;
  common.generation.alternatives = alternatives;
}

// --- chat ---

void read_chat_probabilities(JsonFields& fields, ApiRequest& request, GenerationRequest& common) {
  const bool wanted = fields.boolean("logprobs").value_or(false);
  const auto alternatives = fields.integer("top_logprobs", 0, kMaxAlternatives);
  if (alternatives && *alternatives > 0 && !wanted)
    fields.fail("top_logprobs", "'top_logprobs' needs 'logprobs': true");
  if (wanted) wants_probabilities(request, common, static_cast<int>(alternatives.value_or(0)));
}

// --- completions ---

bool is_tokens(const Json& json) {
  return json.is_array() && !json.empty() &&
         std::all_of(json.begin(), json.end(), [](const Json& item) { return item.is_number_integer(); });
}

std::vector<std::int32_t> read_prompt(const Json& json, const Tokenizer& tokenizer, const ApiLimits& limits,
                                      JsonFields& fields) {
  std::vector<std::int32_t> tokens;
  if (json.is_string()) {
    auto encoded = tokenizer.encode(json.get<std::string>(), /*add_special=*/true, /*parse_special=*/false);
    if (encoded.ok()) return std::move(encoded).value();
    fields.fail("prompt", encoded.error().message);
  } else if (is_tokens(json)) {
    for (const Json& item : json) {
      if (item < 0 || item >= limits.n_vocab) {
        fields.fail("prompt", fmt::format("token {} is not in the model's vocabulary of {}", item.dump(),
                                          limits.n_vocab));
        return tokens;
      }
      tokens.push_back(item.get<std::int32_t>());
    }
  } else {
    fields.fail("prompt",
                "'prompt' must be a text, a list of tokens, or a list of texts or of lists of tokens");
  }
  return tokens;
}

std::vector<std::vector<std::int32_t>> read_prompts(JsonFields& fields, const Tokenizer& tokenizer,
                                                    const ApiLimits& limits) {
  std::vector<std::vector<std::int32_t>> prompts;
  const Json* json = fields.value("prompt");
  if (json == nullptr) {
    fields.fail("prompt", "there is no 'prompt'");
  } else if (!json->is_array() || is_tokens(*json)) {
    prompts.push_back(read_prompt(*json, tokenizer, limits, fields));
  } else if (json->empty() || json->size() > limits.max_prompts) {
    fields.fail("prompt", fmt::format("'prompt' must list 1 to {} prompts", limits.max_prompts));
  } else {
    for (const Json& item : *json) prompts.push_back(read_prompt(item, tokenizer, limits, fields));
  }
  return prompts;
}

}  // namespace

ParsedRequest parse_chat_request(const Json& body, const Tokenizer& tokenizer, const ApiLimits& limits) {
  JsonFields fields(body);
  ApiRequest request{.is_chat = true};
  const ChatHistory conversation = read_messages(fields);
  GenerationRequest common = read_common(fields, request);
  read_chat_probabilities(fields, request, common);
  const ChatTools tools = read_tools(fields);
  const char* older = "give 'tools', which are newer";
  fields.accept_only("functions", {Json::array()}, older);
  fields.accept_only("function_call", {"none", "auto"}, older);
  const AnswerFormat format = read_answer_format(fields);
  if (!format.gbnf.empty() && tools.may_be_called())
    fields.fail(format.parameter,
                fmt::format("'{}' holds answers to a format, and tools to another: ask without "
                            "'tools', or with 'tool_choice': \"none\"",
                            format.parameter));
  fields.accept_only("modalities", {Json::array({"text"})}, "answers are text");
  fields.refuse_others();
  if (fields.error()) return *fields.error();
  if (auto failure = set_grammar({format.gbnf}, format.parameter, tokenizer, common))
    return *std::move(failure);
  if (auto failure = set_chat_prompt(conversation, tools, tokenizer, limits.chat_template, request, common))
    return *std::move(failure);
  request.prompts.push_back(std::move(common));
  return request;
}

ParsedRequest parse_completion_request(const Json& body, const Tokenizer& tokenizer,
                                       const ApiLimits& limits) {
  JsonFields fields(body);
  ApiRequest request;
  GenerationRequest common = read_common(fields, request);
  if (const auto alternatives = fields.integer("logprobs", 0, kMaxAlternatives))
    wants_probabilities(request, common, static_cast<int>(*alternatives));
  fields.accept_only("best_of", {1, common.n_answers}, "all answers are given: use 'n'");
  fields.accept_only("echo", {false}, "the prompt is not repeated");
  fields.accept_only("suffix", {""}, "text is only continued at its end");
  const AnswerFormat format = read_answer_format(fields);
  std::vector<std::vector<std::int32_t>> prompts = read_prompts(fields, tokenizer, limits);
  if (!common.session.empty() && prompts.size() > 1)
    fields.fail("prompt", "a session goes on with one prompt: ask for the others without it");
  if (const Json* prompt = fields.value("prompt"); prompt != nullptr && prompt->is_string())
    common.text = prompt->get<std::string>();
  fields.refuse_others();
  if (fields.error()) return *fields.error();
  if (auto failure = set_grammar({format.gbnf}, format.parameter, tokenizer, common))
    return *std::move(failure);
  for (auto& prompt : prompts) {
    request.prompts.push_back(common);
    request.prompts.back().prompt = std::move(prompt);
  }
  return request;
}

}  // namespace kvant
