#include "serve/infill_routes.h"

#include <fmt/format.h>
#include <httplib.h>

#include <algorithm>
#include <iterator>

#include "base/json_reader.h"
#include "serve/answer_delivery.h"
#include "serve/api_response.h"
#include "serve/exchange.h"
#include "serve/http_reply.h"
#include "serve/infill_prompt.h"
#include "serve/json_fields.h"
#include "serve/server_log.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;
using httplib::Request;
using httplib::Response;

// They shape what an editor suggests, by time and layout. Editors send them always.
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

// The format of llama-server: the text, and in the last part what has ended it.
class InfillAnswer {
 public:
  explicit InfillAnswer(std::string model) : model_(std::move(model)) {}

  std::string part_event(const AnswerPart& part) {
    last_ = part;
    if (part.end == GenerationEnd::none)
      return sse_event(response_text({{"index", 0}, {"content", part.text}, {"stop", false}}));
    text_ = part.text;  // which comes with what has ended it
    return "";
  }
  void add(const AnswerPart& part) {
    last_ = part;
    text_ += part.text;
  }
  Json whole(const TokenUsage& usage) const {
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

 private:
  std::string model_, text_;
  AnswerPart last_;
};

void answer(const Request& request, Response& response, Exchange& exchange, InfillAnswer whole) {
  if (!read_answers(request, exchange, [&](int, const AnswerPart& part) { whole.add(part); })) return;
  if (const auto failure = exchange.failure()) return send(response, *failure);
  send(response, whole.whole(exchange.usage()));
}

void stream(Response& response, const std::shared_ptr<Exchange>& exchange, InfillAnswer answer) {
  const auto shared_answer = std::make_shared<InfillAnswer>(std::move(answer));
  stream_answers(
      response, exchange,
      {.start = nullptr,
       .part = [shared_answer](int, const AnswerPart& part) { return shared_answer->part_event(part); },
       .end =
           [shared_answer, exchange] {
             const auto failure = exchange->failure();
             return sse_event(failure ? failure->body()
                                      : response_text(shared_answer->whole(exchange->usage())));
           }});
}

}  // namespace

ParsedRequest parse_infill_request(const Json& body, const Tokenizer& tokenizer, const ApiLimits& limits) {
  JsonFields fields(body);
  fields.accept_only("n", {1}, "there is one middle to a text");
  fields.accept_only("suffix", {""}, "give 'input_suffix'");
  fields.accept_only("echo", {false}, "the text stands before and after the middle");
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
      limits.log->message_once(fmt::format("requests have '{}', which changes nothing here", name));
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
  add_post_route(server, "/infill",
                 [&loop, &tokenizer, limits, served](const Request& request, Response& response) {
                   const auto body = parse_json(request.body);
                   if (!body.ok()) return send(response, ApiError{.message = body.error().message});
                   ParsedRequest parsed = parse_infill_request(*body, tokenizer, limits);
                   if (const auto* wrong = std::get_if<ApiError>(&parsed)) return send(response, *wrong);
                   auto& wanted = std::get<ApiRequest>(parsed);
                   const auto recipe = address(wanted, served, request.remote_addr);
                   if (const auto* unknown = std::get_if<ApiError>(&recipe)) return send(response, *unknown);
                   InfillAnswer middle(wanted.model);
                   const bool streams = wanted.stream;
                   auto started = Exchange::start(loop, std::move(wanted));
                   if (const auto* refused = std::get_if<ApiError>(&started)) return send(response, *refused);
                   const auto& exchange = std::get<std::shared_ptr<Exchange>>(started);
                   if (streams) {
                     stream(response, exchange, std::move(middle));
                   } else {
                     answer(request, response, *exchange, std::move(middle));
                   }
                 });
}

}  // namespace kvant
