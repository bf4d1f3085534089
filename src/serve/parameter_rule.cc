#include "serve/parameter_rule.h"

#include <fmt/format.h>

#include <algorithm>

#include "serve/server_log.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

struct Refused {
  const char* name;
  const char* why;
  std::vector<Json> harmless = {};  // values that have no effect, besides empty, false and null
};

// Returns the parameters that change the meaning of a request, by topic.
const std::vector<Refused>& refused() {
  constexpr const char* kTextAlone = "completions are text";
  constexpr const char* kOlder = "give 'tools' instead";
  constexpr const char* kChat = "chats have tools, so use /v1/chat/completions";
  constexpr const char* kFormat = "give 'response_format', 'json_schema' or 'grammar'";
  constexpr const char* kDrawing = "this sampling method is not implemented";
  constexpr const char* kLength = "give 'max_tokens'";
  constexpr const char* kPrompt = "the prompt is used as it is";
  constexpr const char* kOutput = "the text is returned as it is";
  static const std::vector<Refused> kRefused = {
      // These parameters ask for other kinds of input and output.
      {"modalities", kTextAlone, {Json::array({"text"})}},
      {"audio", kTextAlone},
      {"images", kTextAlone},
      {"image_data", kTextAlone},
      {"multimodal_data", kTextAlone},
      // These parameters ask for tools of the server, or are older forms of `tools`.
      {"functions", kOlder},
      {"function_call", kOlder, {"none", "auto"}},
      {"tools", kChat},
      {"tool_choice", kChat, {"none", "auto"}},
      {"web_search_options", "the server has no tools of its own"},
      {"mcp_servers", "the server has no tools of its own"},
      {"container", "the server has no tools of its own"},
      // These parameters set formats.
      {"output_format", kFormat},
      {"guided_json", kFormat},
      {"guided_regex", kFormat},
      {"guided_choice", kFormat},
      {"guided_grammar", kFormat},
      {"structured_outputs", kFormat},
      {"regex", kFormat},
      {"ebnf", kFormat},
      {"grammar_lazy", "a grammar applies from the first token on"},
      {"grammar_triggers", "a grammar applies from the first token on"},
      // These parameters change how tokens are drawn.
      {"samplers", "the order of samplers is that of llama.cpp"},
      {"sampler_seq", "the order of samplers is that of llama.cpp"},
      {"mirostat", kDrawing, {0}},
      {"dry_multiplier", kDrawing, {0}},
      {"tfs_z", kDrawing, {1}},
      {"tfs", kDrawing, {1}},
      {"top_a", kDrawing, {0}},
      {"smoothing_factor", kDrawing, {0}},
      {"adaptive_target", kDrawing, {-1}},
      {"no_repeat_ngram_size", kDrawing, {0}},
      {"penalty_alpha", kDrawing, {0}},
      {"guidance_scale", kDrawing, {1}},
      {"cfg_scale", kDrawing, {1}},
      {"min_keep", kDrawing, {0, 1}},
      {"use_beam_search", "beam search is not implemented"},
      {"num_beams", "beam search is not implemented", {1}},
      {"length_penalty", "beam search is not implemented", {1}},
      {"early_stopping", "beam search is not implemented"},
      {"best_of", "all completions are returned: use 'n'", {1}},
      {"allowed_token_ids", kFormat},
      {"bad_words", "give 'logit_bias'"},
      {"logits_processors", "the server does not run code of clients"},
      {"lora", "adapters are not implemented"},
      {"post_sampling_probs", "probabilities are those of the model"},
      {"n_probs", "give 'logprobs'", {0}},
      // These parameters change when a completion ends.
      {"max_new_tokens", kLength, {-1}},
      {"num_predict", kLength, {-1}},
      {"max_length", kLength, {-1}},
      {"min_tokens", "the model decides where a completion ends", {0}},
      {"stop_token_ids", "give 'stop'"},
      {"include_stop_str_in_output", "a stop text is not part of a completion"},
      {"t_max_predict_ms", "completions have no time limit", {0, -1}},
      {"n_indent", "lines may be indented as the model likes", {0}},
      {"thinking_token_budget", "thoughts have no separate limit", {-1}},
      // These parameters change what happens to the prompt.
      {"echo", "the prompt is not repeated"},
      {"suffix", "use /v1/completions or /infill"},
      {"prompt_logprobs", "give 'echo' with 'logprobs' to /v1/completions"},
      {"truncate_prompt_tokens", kPrompt, {-1}},
      {"chat_template", "the server decides on the template: start it with --chat-template FILE"},
      {"documents", "put documents into the messages"},
      {"add_generation_prompt", kPrompt, {true}},
      {"continue_final_message", kPrompt},
      {"session", "only /v1/chat/completions and /v1/completions continue sessions"},
      // These parameters change what happens to the text.
      {"n_cmpl", "give 'n'", {1}},
      {"n", "a request has one response", {1}},
      {"response_fields", kOutput},
      {"return_tokens_as_token_ids", kOutput},
  };
  return kRefused;
}

bool asks_for_nothing(const Json& value, const std::vector<Json>& harmless) {
  const bool is_empty = value.is_string() ? value.get_ref<const Json::string_t&>().empty()
                                          : value.is_structured() && value.empty();
  return is_empty || value == false || std::ranges::find(harmless, value) != harmless.end();
}

}  // namespace

void apply_parameter_rule(JsonFields& fields, ServerLog* log) {
  for (const Refused& parameter : refused()) {
    if (fields.was_read(parameter.name)) continue;
    const Json* value = fields.value(parameter.name);
    if (value != nullptr && !asks_for_nothing(*value, parameter.harmless))
      fields.fail(parameter.name, fmt::format("'{}' is not supported: {}", parameter.name, parameter.why),
                  kUnsupportedParameter);
  }
  fields.leave_others();
  if (log == nullptr || fields.error()) return;
  for (const std::string& hint : fields.hints())
    log->message_once(fmt::format("requests have '{}', which has no effect here", hint));
}

}  // namespace kvant
