#include "serve/messages_routes.h"

#include <httplib.h>

#include "base/json_reader.h"
#include "serve/api_response.h"
#include "serve/exchange.h"
#include "serve/http_reply.h"
#include "serve/messages_api.h"

namespace kvant {
namespace {

using httplib::Request;
using httplib::Response;

void refuse(Response& response, const ApiError& error) {
  response.status = error.status;
  if (error.retry_seconds > 0) response.set_header("Retry-After", std::to_string(error.retry_seconds));
  response.set_content(messages_error(error), kJsonType);
}

void answer(const Request& request, Response& response, Exchange& exchange, MessagesResponse whole) {
  int choice = 0;
  AnswerPart part;
  while (true) {
    const AnswerStream::Next next = exchange.read(kPatience, choice, part);
    if (next == AnswerStream::Next::closed) break;
    if (next == AnswerStream::Next::part) whole.add(part);
    if (next == AnswerStream::Next::nothing_yet && request.is_connection_closed()) return;
  }
  if (const auto failure = exchange.failure()) return refuse(response, *failure);
  response.set_content(response_text(whole.whole(exchange.usage())), kJsonType);
}

void stream(Response& response, const std::shared_ptr<Exchange>& exchange, MessagesResponse events) {
  response.set_header("Cache-Control", "no-cache");
  const auto shared_events = std::make_shared<MessagesResponse>(std::move(events));
  // Returns false when the client has gone; the exchange goes with this function then.
  const auto provide = [exchange, shared_events, started = false](std::size_t,
                                                                  httplib::DataSink& sink) mutable {
    const auto write = [&sink](const std::string& text) {
      return text.empty() || sink.write(text.data(), text.size());
    };
    if (!std::exchange(started, true)) return write(shared_events->start_events());
    int choice = 0;
    AnswerPart part;
    switch (exchange->read(kPatience, choice, part)) {
      case AnswerStream::Next::part:
        shared_events->add(part);
        return write(shared_events->part_event(part));
      case AnswerStream::Next::nothing_yet:
        return !sink.is_writable || sink.is_writable();
      case AnswerStream::Next::closed:
        break;
    }
    const auto failure = exchange->failure();
    const bool sent =
        write(failure ? messages_error_event(*failure) : shared_events->end_events(exchange->usage()));
    sink.done();
    return sent;
  };
  response.set_chunked_content_provider("text/event-stream", provide);
}

}  // namespace

void add_messages_route(httplib::Server& server, ServeLoop& loop, const Tokenizer& tokenizer,
                        const ServerInfo& info) {
  server.Post("/v1/messages", [&](const Request& request, Response& response) {
    const auto body = parse_json(request.body);
    if (!body.ok()) return refuse(response, ApiError{.message = body.error().message});
    ParsedRequest parsed = parse_messages_request(*body, tokenizer);
    if (const auto* wrong = std::get_if<ApiError>(&parsed)) return refuse(response, *wrong);
    auto& wanted = std::get<ApiRequest>(parsed);
    if (!wanted.model.empty() && wanted.model != info.model) {
      return refuse(response, ApiError{.status = 404,
                                       .message = fmt::format("the model '{}' is not served here: '{}' is",
                                                              wanted.model, info.model)});
    }
    GenerationRequest& prompt = wanted.prompts.front();
    prompt.client = request.remote_addr + "/" + prompt.client;
    MessagesResponse message(info.model, static_cast<int>(prompt.prompt.size()));
    const bool streams = wanted.stream;
    auto started = Exchange::start(loop, std::move(wanted));
    if (const auto* refused = std::get_if<ApiError>(&started)) return refuse(response, *refused);
    const auto& exchange = std::get<std::shared_ptr<Exchange>>(started);
    if (streams) {
      stream(response, exchange, std::move(message));
    } else {
      answer(request, response, *exchange, std::move(message));
    }
  });
}

}  // namespace kvant
