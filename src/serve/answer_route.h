// The way of a request that generates, which is the same in all APIs: it is parsed, goes to the recipe that
// its model names, starts, and its answers are sent whole or as events.
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

// The answers to one request in the format of an API. They are sent whole, or as what the others return:
// events with their separators.
class ApiAnswers {
 public:
  using Json = nlohmann::ordered_json;

  virtual ~ApiAnswers() = default;

  virtual void add(int choice, const AnswerPart& part) = 0;
  virtual Json whole(const TokenUsage& usage) = 0;  // after the last part

  virtual std::string start_events(const TokenUsage& /*usage*/) { return ""; }  // of the prompt
  virtual std::string part_events(int choice, const AnswerPart& part) = 0;
  virtual std::string end_events(const TokenUsage& usage) = 0;
  virtual std::string failure_events(const ApiError& failure) = 0;
  virtual const char* heartbeat() const { return kSseComment; }
};

struct AnswerRoute {
  std::function<ParsedRequest(const nlohmann::ordered_json& body)> parse;
  // wanted: what was parsed, with the name of the model that answers. info: of that. request_id: for errors.
  std::function<std::unique_ptr<ApiAnswers>(const nlohmann::ordered_json& body, const ApiRequest& wanted,
                                            const ServerInfo& info, const std::string& request_id)>
      answers;
};

struct AcceptedRequest {
  nlohmann::ordered_json body;
  ApiRequest wanted;
  int recipe = 0;  // that is to answer
};
// Nothing: the response says why not.
std::optional<AcceptedRequest> accept(const httplib::Request& request, httplib::Response& response,
                                      std::span<const ServerInfo> served,
                                      const decltype(AnswerRoute::parse)& parse);

void add_answer_route(httplib::Server& server, const std::string& path, ServeLoop& loop,
                      std::span<const ServerInfo> served, AnswerRoute route);

}  // namespace kvant
