#include "serve/answer_route.h"

#include <httplib.h>

#include "base/json_reader.h"
#include "serve/api_response.h"
#include "serve/exchange.h"
#include "serve/http_reply.h"

namespace kvant {
namespace {

using httplib::Request;
using httplib::Response;

void send_whole(const Request& request, Response& response, Exchange& exchange, ApiAnswers& answers) {
  if (!read_answers(request, exchange,
                    [&](int choice, const AnswerPart& part) { answers.add(choice, part); }))
    return;
  if (const auto failure = exchange.failure()) return send(request, response, *failure);
  send(response, answers.whole(exchange.usage()));
}

void send_events(Response& response, const std::shared_ptr<Exchange>& exchange,
                 const std::shared_ptr<ApiAnswers>& answers) {
  stream_answers(
      response, exchange,
      {.start = [answers, exchange] { return answers->start_events(exchange->usage()); },
       .part = [answers](int choice, const AnswerPart& part) { return answers->part_events(choice, part); },
       .end =
           [answers, exchange] {
             const auto failure = exchange->failure();
             return failure ? answers->failure_events(*failure) : answers->end_events(exchange->usage());
           },
       .heartbeat = answers->heartbeat()});
}

}  // namespace

std::optional<AcceptedRequest> accept(const Request& request, Response& response,
                                      std::span<const ServerInfo> served,
                                      const decltype(AnswerRoute::parse)& parse) {
  auto body = parse_json(request.body);
  if (!body.ok()) {
    send(request, response, ApiError{.message = body.error().message});
    return std::nullopt;
  }
  ParsedRequest parsed = parse(*body);
  if (const auto* wrong = std::get_if<ApiError>(&parsed)) {
    send(request, response, *wrong);
    return std::nullopt;
  }
  auto& wanted = std::get<ApiRequest>(parsed);
  const auto recipe = address(wanted, served, request.remote_addr);
  if (const auto* unknown = std::get_if<ApiError>(&recipe)) {
    send(request, response, *unknown);
    return std::nullopt;
  }
  return AcceptedRequest{std::move(body).value(), std::move(wanted), std::get<int>(recipe)};
}

void add_answer_route(httplib::Server& server, const std::string& path, ServeLoop& loop,
                      std::span<const ServerInfo> served, AnswerRoute route) {
  add_post_route(
      server, path, [&loop, served, route = std::move(route)](const Request& request, Response& response) {
        auto accepted = accept(request, response, served, route.parse);
        if (!accepted) return;
        const std::shared_ptr<ApiAnswers> answers =
            route.answers(accepted->body, accepted->wanted, served[accepted->recipe], request_id(response));
        const bool streams = accepted->wanted.stream;
        auto started = Exchange::start(loop, std::move(accepted->wanted));
        if (const auto* refused = std::get_if<ApiError>(&started)) return send(request, response, *refused);
        const auto& exchange = std::get<std::shared_ptr<Exchange>>(started);
        if (streams) return send_events(response, exchange, answers);
        send_whole(request, response, *exchange, *answers);
      });
}

}  // namespace kvant
