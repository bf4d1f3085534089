#include "serve/messages_routes.h"

#include <httplib.h>

#include "base/json_reader.h"
#include "serve/answer_delivery.h"
#include "serve/api_response.h"
#include "serve/exchange.h"
#include "serve/http_reply.h"
#include "serve/messages_api.h"
#include "serve/messages_error.h"

namespace kvant {
namespace {

using httplib::Request;
using httplib::Response;

void answer(const Request& request, Response& response, Exchange& exchange, MessagesResponse whole) {
  if (!read_answers(request, exchange, [&](int, const AnswerPart& part) { whole.add(part); })) return;
  if (const auto failure = exchange.failure()) return send(request, response, *failure);
  response.set_content(response_text(whole.whole(exchange.usage())), kJsonType);
}

void stream(Response& response, const std::shared_ptr<Exchange>& exchange, MessagesResponse events) {
  const auto shared_events = std::make_shared<MessagesResponse>(std::move(events));
  stream_answers(
      response, exchange,
      {.start = [shared_events, exchange] { return shared_events->start_events(exchange->usage()); },
       .part = [shared_events](int, const AnswerPart& part) { return shared_events->part_events(part); },
       .end =
           [shared_events, exchange, id = request_id(response)] {
             const auto failure = exchange->failure();
             return failure ? messages_error_event(*failure, id)
                            : shared_events->end_events(exchange->usage());
           },
       .heartbeat = "event: ping\ndata: {\"type\": \"ping\"}\n\n"});
}

// Clients have names of Anthropic's models built in, such as that of a smaller one for titles: the model that
// is served stands for all of them.
std::variant<int, ApiError> address_message(ApiRequest& request, std::span<const ServerInfo> served,
                                            const std::string& client) {
  if (recipe_of(served, request.model) < 0 && request.model.starts_with("claude-")) request.model.clear();
  return address(request, served, client);
}

// What the prompt of the same request to /v1/messages would have. It needn't say how long the answer may be.
void count_tokens(const Request& request, Response& response, const Tokenizer& tokenizer,
                  const ApiLimits& limits, std::span<const ServerInfo> served) {
  auto body = parse_json(request.body);
  if (!body.ok()) return send(request, response, ApiError{.message = body.error().message});
  if (body->is_object()) body->emplace("max_tokens", 1);
  ParsedRequest parsed = parse_messages_request(*body, tokenizer, limits);
  if (const auto* wrong = std::get_if<ApiError>(&parsed)) return send(request, response, *wrong);
  auto& wanted = std::get<ApiRequest>(parsed);
  const auto recipe = address_message(wanted, served, request.remote_addr);
  if (const auto* unknown = std::get_if<ApiError>(&recipe)) return send(request, response, *unknown);
  send(response, {{"input_tokens", wanted.prompts.front().prompt.size()}});
}

}  // namespace

void add_messages_route(httplib::Server& server, ServeLoop& loop, const Tokenizer& tokenizer,
                        const ApiLimits& limits, std::span<const ServerInfo> served) {
  add_post_route(server, "/v1/messages/count_tokens",
                 [&tokenizer, limits, served](const Request& request, Response& response) {
                   count_tokens(request, response, tokenizer, limits, served);
                 });
  add_post_route(server, "/v1/messages",
                 [&loop, &tokenizer, limits, served](const Request& request, Response& response) {
                   const auto body = parse_json(request.body);
                   if (!body.ok()) return send(request, response, ApiError{.message = body.error().message});
                   ParsedRequest parsed = parse_messages_request(*body, tokenizer, limits);
                   if (const auto* wrong = std::get_if<ApiError>(&parsed))
                     return send(request, response, *wrong);
                   auto& wanted = std::get<ApiRequest>(parsed);
                   const auto recipe = address_message(wanted, served, request.remote_addr);
                   if (const auto* unknown = std::get_if<ApiError>(&recipe))
                     return send(request, response, *unknown);
                   MessagesResponse message(wanted.model, wanted.tool_format, wanted.stops);
                   const bool streams = wanted.stream;
                   auto started = Exchange::start(loop, std::move(wanted));
                   if (const auto* refused = std::get_if<ApiError>(&started))
                     return send(request, response, *refused);
                   const auto& exchange = std::get<std::shared_ptr<Exchange>>(started);
                   if (streams) {
                     stream(response, exchange, std::move(message));
                   } else {
                     answer(request, response, *exchange, std::move(message));
                   }
                 });
}

}  // namespace kvant
