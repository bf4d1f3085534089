#include "serve/infill_routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "serve/answer_route.h"
#include "serve/api_response.h"
#include "serve/infill_prompt.h"
#include "serve/json_fields.h"
#include "serve/server_log.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

// Editors always send these parameters. The parameters only shape suggestions, so the server treats them as
// hints.
constexpr const char* kEditorHints[] = {"t_max_prompt_ms", "t_max_predict_ms", "n_indent", "samplers",
                                        "response_fields"};

std::vector<InfillText::File> read_files(JsonFields& fields) {
  std::vector<InfillText::File> files;
  const Json* list = fields.list("input_extra", "files");
  for (std::size_t i = 0; list != nullptr && i < list->size() && !fields.error(); ++i) {
    JsonFields file((*list)[i], fmt::format("input_extra[{}]", i));
    files.push_back({file.text("filename").value_or("tmp"), file.text("text").value_or("")});
    fields.fail(file.error());
  }
  return files;
}

const char* stop_type(const AnswerPart& last) {
  if (last.end == GenerationEnd::length) return "limit";
  return last.stop.empty() ? "eos" : "word";
}

// InfillAnswers writes llama-server's format. The last event of a stream also has the reason for the end.
class InfillAnswers final : public ApiAnswers {
 public:
  explicit InfillAnswers(std::string model) : model_(std::move(model)) {}

  void add(int /*choice*/, const AnswerPart& part) override {
    last_ = part;
    text_ += part.text;
  }
  Json whole(const TokenUsage& usage) override {
    return {{"index", 0},
            {"content", text_},
            {"stop", true},
            {"model", model_},
            {"tokens_predicted", usage.generated},
            {"tokens_evaluated", usage.prompt},
            {"tokens_cached", usage.cached},
            {"truncated", false},
            {"stop_type", stop_type(last_)},
            {"stopping_word", last_.stop}};
  }

  std::string part_events(int /*choice*/, const AnswerPart& part) override {
    last_ = part;
    if (part.end == GenerationEnd::none)
      return sse_event(response_text({{"index", 0}, {"content", part.text}, {"stop", false}}));
    text_ = part.text;  // whole() sends the last part's text together with the reason
    return "";
  }
  std::string end_events(const TokenUsage& usage) override { return sse_event(response_text(whole(usage))); }
  std::string failure_events(const ApiError& failure) override { return sse_event(failure.body()); }

 private:
  std::string model_, text_;
  AnswerPart last_;
};

}  // namespace

ParsedRequest parse_infill_request(const Json& body, const Tokenizer& tokenizer, const ApiLimits& limits) {
  JsonFields fields(body);
  fields.accept_only("n", {1}, "a text has only one middle");
  fields.accept_only("suffix", {""}, "give 'input_suffix'");
  fields.accept_only("echo", {false}, "the client already has the text before and after the middle");
  const InfillText text{.prefix = fields.text("input_prefix").value_or(""),
                        .suffix = fields.text("input_suffix").value_or(""),
                        .start = fields.text("prompt").value_or(""),
                        .files = read_files(fields)};
  if (fields.error()) return *fields.error();
  const auto prompt = infill_prompt(text, tokenizer);
  if (!prompt.ok()) return ApiError{.message = prompt.error().message};
  Json completion = body;
  for (const char* name : {"input_prefix", "input_suffix", "input_extra"}) completion.erase(name);
  for (const char* name : kEditorHints) {
    if (completion.erase(name) > 0 && limits.log != nullptr)
      limits.log->message_once(fmt::format("requests have '{}', which has no effect here", name));
  }
  completion["prompt"] = *prompt;
  ParsedRequest parsed = parse_completion_request(completion, tokenizer, limits);
  if (auto* request = std::get_if<ApiRequest>(&parsed)) {
    for (GenerationRequest& prompt : request->prompts)
      std::ranges::move(infill_stops(tokenizer), std::back_inserter(prompt.generation.stops));
  }
  return parsed;
}

void add_infill_route(httplib::Server& server, ServeLoop& loop, const Tokenizer& tokenizer,
                      const ApiLimits& limits, std::span<const ServerInfo> served) {
  add_answer_route(
      server, "/infill", loop, served,
      {.parse = [&tokenizer,
                 limits](const Json& body) { return parse_infill_request(body, tokenizer, limits); },
       .answers = [](const Json&, const ApiRequest& wanted, const ServerInfo&,
                     const std::string&) { return std::make_unique<InfillAnswers>(wanted.model); }});
}

}  // namespace kvant
