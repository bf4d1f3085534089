#include "serve/responses_routes.h"

#include "serve/answer_route.h"
#include "serve/responses_answer.h"
#include "serve/responses_request.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

class ResponsesAnswers final : public ApiAnswers {
 public:
  explicit ResponsesAnswers(ResponsesAnswer answer) : answer_(std::move(answer)) {}

  void add(int /*choice*/, const AnswerPart& part) override { answer_.part_events(part); }
  Json whole(const TokenUsage& usage) override {
    answer_.end_events(usage);
    return answer_.whole();
  }

  std::string start_events(const TokenUsage& /*usage*/) override { return answer_.start_events(); }
  std::string part_events(int /*choice*/, const AnswerPart& part) override {
    return answer_.part_events(part);
  }
  std::string end_events(const TokenUsage& usage) override { return answer_.end_events(usage); }
  std::string failure_events(const ApiError& failure) override { return answer_.failure_event(failure); }

 private:
  ResponsesAnswer answer_;
};

}  // namespace

void add_responses_route(httplib::Server& server, ServeLoop& loop, const Tokenizer& tokenizer,
                         const ApiLimits& limits, std::span<const ServerInfo> served) {
  add_answer_route(
      server, "/v1/responses", loop, served,
      {.parse = [&tokenizer,
                 limits](const Json& body) { return parse_responses_request(body, tokenizer, limits); },
       .answers =
           [&tokenizer](const Json& body, const ApiRequest& wanted, const ServerInfo&, const std::string&) {
             return std::make_unique<ResponsesAnswers>(
                 ResponsesAnswer(body, wanted.model, wanted.tool_format, tokenizer));
           }});
}

}  // namespace kvant
