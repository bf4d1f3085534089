#include "serve/responses_routes.h"

#include <httplib.h>

#include "base/json_reader.h"
#include "serve/answer_delivery.h"
#include "serve/exchange.h"
#include "serve/http_reply.h"
#include "serve/responses_answer.h"
#include "serve/responses_request.h"

namespace kvant {
namespace {

using httplib::Request;
using httplib::Response;

void answer(const Request& request, Response& response, Exchange& exchange, ResponsesAnswer whole) {
  if (!read_answers(request, exchange, [&](int, const AnswerPart& part) { whole.part_events(part); })) return;
  if (const auto failure = exchange.failure()) return send(response, *failure);
  whole.end_events(exchange.usage());
  send(response, whole.whole());
}

void stream(Response& response, const std::shared_ptr<Exchange>& exchange, ResponsesAnswer events) {
  const auto shared_events = std::make_shared<ResponsesAnswer>(std::move(events));
  stream_answers(
      response, exchange,
      {.start = [shared_events] { return shared_events->start_events(); },
       .part = [shared_events](int, const AnswerPart& part) { return shared_events->part_events(part); },
       .end =
           [shared_events, exchange] {
             const auto failure = exchange->failure();
             return failure ? shared_events->failure_event(*failure)
                            : shared_events->end_events(exchange->usage());
           }});
}

}  // namespace

void add_responses_route(httplib::Server& server, ServeLoop& loop, const Tokenizer& tokenizer,
                         const ApiLimits& limits, std::span<const ServerInfo> served) {
  add_post_route(server, "/v1/responses",
                 [&loop, &tokenizer, limits, served](const Request& request, Response& response) {
                   const auto body = parse_json(request.body);
                   if (!body.ok()) return send(response, ApiError{.message = body.error().message});
                   ParsedRequest parsed = parse_responses_request(*body, tokenizer, limits);
                   if (const auto* wrong = std::get_if<ApiError>(&parsed)) return send(response, *wrong);
                   auto& wanted = std::get<ApiRequest>(parsed);
                   const auto recipe = address(wanted, served, request.remote_addr);
                   if (const auto* unknown = std::get_if<ApiError>(&recipe)) return send(response, *unknown);
                   ResponsesAnswer answers(*body, wanted.model, wanted.tool_format, tokenizer);
                   const bool streams = wanted.stream;
                   auto started = Exchange::start(loop, std::move(wanted));
                   if (const auto* refused = std::get_if<ApiError>(&started)) return send(response, *refused);
                   const auto& exchange = std::get<std::shared_ptr<Exchange>>(started);
                   if (streams) {
                     stream(response, exchange, std::move(answers));
                   } else {
                     answer(request, response, *exchange, std::move(answers));
                   }
                 });
}

}  // namespace kvant
