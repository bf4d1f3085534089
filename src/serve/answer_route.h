// Handles requests that generate completions, in the same way for all APIs. A route parses a request and
// finds the recipe that the request's model name stands for. The route then starts the request and sends the
// completions, whole or as events.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>

#include "serve/answer_delivery.h"
#include "serve/api_request.h"
#include "serve/serve_loop.h"
#include "serve/server_info.h"

namespace kvant {

// ApiAnswers writes the completions of one request in the format of an API. add() and whole() build a whole
// response. The functions named *_events return a stream's events with their separators.
class ApiAnswers {
 public:
  using Json = nlohmann::ordered_json;

  virtual ~ApiAnswers() = default;

  virtual void add(int choice, const AnswerPart& part) = 0;
  virtual Json whole(const TokenUsage& usage) = 0;  // the caller has added the last part

  // Returns the events that begin a stream. `usage` covers only the prompt.
  virtual std::string start_events(const TokenUsage& /*usage*/) { return ""; }
  virtual std::string part_events(int choice, const AnswerPart& part) = 0;
  virtual std::string end_events(const TokenUsage& usage) = 0;
  virtual std::string failure_events(const ApiError& failure) = 0;
  virtual const char* heartbeat() const { return kSseComment; }
};

struct AnswerRoute {
  std::function<ParsedRequest(const nlohmann::ordered_json& body)> parse;
  // `wanted` is the parsed request and already names the model that serves it. `info` describes that model.
  // `request_id` appears in errors of the stream.
  std::function<std::unique_ptr<ApiAnswers>(const nlohmann::ordered_json& body, const ApiRequest& wanted,
                                            const ServerInfo& info, const std::string& request_id)>
      answers;
};

struct AcceptedRequest {
  nlohmann::ordered_json body;
  ApiRequest wanted;
  int recipe = 0;  // this index into `served` selects the recipe
};
// Parses a request and finds its recipe. If the request is refused, the function writes the error into
// `response` and returns nothing.
std::optional<AcceptedRequest> accept(const httplib::Request& request, httplib::Response& response,
                                      std::span<const ServerInfo> served,
                                      const decltype(AnswerRoute::parse)& parse);

void add_answer_route(httplib::Server& server, const std::string& path, ServeLoop& loop,
                      std::span<const ServerInfo> served, AnswerRoute route);

}  // namespace kvant
