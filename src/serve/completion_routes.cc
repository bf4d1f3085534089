#include "serve/completion_routes.h"

#include "serve/answer_route.h"
#include "serve/api_response.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

class CompletionAnswers final : public ApiAnswers {
 public:
  CompletionAnswers(const Tokenizer& tokenizer, const ApiRequest& wanted, const ServerInfo& info)
      : response_(tokenizer, wanted.is_chat, wanted.wants_probabilities, wanted.tool_format, wanted.model,
                  info.fingerprint + "-" + info.recipe),
        include_usage_(wanted.include_usage) {}

  void add(int choice, const AnswerPart& part) override { response_.add(choice, part); }
  Json whole(const TokenUsage& usage) override { return response_.whole(usage); }

  std::string part_events(int choice, const AnswerPart& part) override {
    const Json chunk = response_.chunk(choice, part);
    return chunk.is_null() ? "" : sse_event(response_text(chunk));
  }
  std::string end_events(const TokenUsage& usage) override {
    const std::string last =
        include_usage_ ? sse_event(response_text(response_.usage_chunk(usage))) : std::string();
    return last + sse_event("[DONE]");
  }
  std::string failure_events(const ApiError& failure) override {
    return sse_event(failure.body()) + sse_event("[DONE]");
  }

 private:
  ApiResponse response_;
  bool include_usage_;
};

}  // namespace

void add_completion_routes(httplib::Server& server, ServeLoop& loop, const Tokenizer& tokenizer,
                           const ApiLimits& limits, std::span<const ServerInfo> served) {
  using Parse = ParsedRequest (*)(const Json&, const Tokenizer&, const ApiLimits&);
  const auto add = [&](const char* path, Parse parse) {
    add_answer_route(
        server, path, loop, served,
        {.parse = [parse, &tokenizer, limits](const Json& body) { return parse(body, tokenizer, limits); },
         .answers =
             [&tokenizer](const Json&, const ApiRequest& wanted, const ServerInfo& info, const std::string&) {
               return std::make_unique<CompletionAnswers>(tokenizer, wanted, info);
             }});
  };
  add("/v1/chat/completions", parse_chat_request);
  add("/v1/completions", parse_completion_request);
}

}  // namespace kvant
