#include "serve/messages_routes.h"

#include <httplib.h>

#include "serve/answer_route.h"
#include "serve/http_reply.h"
#include "serve/messages_api.h"
#include "serve/messages_error.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;
using httplib::Request;
using httplib::Response;

class MessagesAnswers final : public ApiAnswers {
 public:
  MessagesAnswers(const ApiRequest& wanted, std::string request_id)
      : response_(wanted.model, wanted.tool_format, wanted.stops), request_id_(std::move(request_id)) {}

  void add(int /*choice*/, const AnswerPart& part) override { response_.add(part); }
  Json whole(const TokenUsage& usage) override { return response_.whole(usage); }

  std::string start_events(const TokenUsage& usage) override { return response_.start_events(usage); }
  std::string part_events(int /*choice*/, const AnswerPart& part) override {
    return response_.part_events(part);
  }
  std::string end_events(const TokenUsage& usage) override { return response_.end_events(usage); }
  std::string failure_events(const ApiError& failure) override {
    return messages_error_event(failure, request_id_);
  }
  const char* heartbeat() const override { return "event: ping\ndata: {\"type\": \"ping\"}\n\n"; }

 private:
  MessagesResponse response_;
  std::string request_id_;
};

}  // namespace

void add_messages_route(httplib::Server& server, ServeLoop& loop, const Tokenizer& tokenizer,
                        const ApiLimits& limits, std::span<const ServerInfo> served) {
  // Client programs contain names of Anthropic's models, for example the name of a small model that writes
  // titles. The served model stands in for all models named "claude-...".
  const auto parse = [&tokenizer, limits, served](const Json& body) {
    ParsedRequest parsed = parse_messages_request(body, tokenizer, limits);
    auto* wanted = std::get_if<ApiRequest>(&parsed);
    if (wanted != nullptr && recipe_of(served, wanted->model) < 0 && wanted->model.starts_with("claude-"))
      wanted->model.clear();
    return parsed;
  };
  // The route counts the tokens of a prompt for /v1/messages. The body need not have max_tokens, so a value
  // is added for the parser.
  const auto parse_count = [parse](Json body) {
    if (body.is_object()) body.emplace("max_tokens", 1);
    return parse(body);
  };
  add_post_route(server, "/v1/messages/count_tokens",
                 [parse_count, served](const Request& request, Response& response) {
                   if (const auto accepted = accept(request, response, served, parse_count))
                     send(response, {{"input_tokens", accepted->wanted.prompts.front().prompt.size()}});
                 });
  add_answer_route(server, "/v1/messages", loop, served,
                   {.parse = parse,
                    .answers = [](const Json&, const ApiRequest& wanted, const ServerInfo&,
                                  const std::string& request_id) {
                      return std::make_unique<MessagesAnswers>(wanted, request_id);
                    }});
}

}  // namespace kvant
